"""Compiled environments as Gymnasium sees them, how they look, and the files that pictures are written to."""

from __future__ import annotations

import struct
import warnings
import zlib

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shoal
from shoal.envs import make, maps, picture, render, scene
from shoal.envs.gridworld import GridWorld
from shoal.envs.pendulum import Pendulum
from shoal.envs.stacking import FrameStack
from shoal.envs.view import GymView, gym_space
from shoal.errors import ConfigError
from shoal.specs import Box, Discrete, EnvSpec, Group, MultiBinary, MultiDiscrete
from shoal.types import Step, pytree

NAMES = ["cartpole", "pendulum", "gridworld", "acrobot"]


@pytree
class Sights:
    """Shows a group of everything; the state counts."""

    @property
    def spec(self) -> EnvSpec:
        image = Box((4, 6, 3), 0.0, 255.0, "uint8")
        seen = Group((("image", image), ("flags", MultiBinary(3)), ("kinds", MultiDiscrete((2, 5)))))
        return EnvSpec("sights", seen, MultiDiscrete((3, 2)), max_episode_steps=9, info=("total",))

    def _show(self, state):
        return {"image": jnp.full((4, 6, 3), state, jnp.uint8), "flags": jnp.ones(3, jnp.int32),
                "kinds": jnp.array([1, 4], jnp.int32)}

    def reset(self, key):
        state = jax.random.randint(key, (), 0, 100)
        return state, self._show(state)

    def step(self, state, action, key):
        state = state + action.sum()
        return state, Step(self._show(state), jnp.float32(state), jnp.zeros((), bool), jnp.zeros((), bool), {"total": state})


def played(view: GymView, actions: list) -> list:
    return [view.step(action) for action in actions]


def assert_equal(a: list, b: list) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x[0], y[0])
        assert x[1:] == y[1:]


@pytest.mark.parametrize("name", NAMES)
def test_views_pass_the_checker_of_gymnasium(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(GymView(name, seed=3), skip_render_check=False)
    said = [str(warning.message) for warning in caught]
    # the compiled environments bound no observation, and Pendulum's torque is what it is in Gymnasium
    assert all("observation space m" in line or "normalized space" in line for line in said), said


def test_a_view_of_every_kind_of_space_passes_too():
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        check_env(GymView(Sights()))
    view = GymView(Sights())
    view.reset()
    _, reward, _, _, info = view.step([2, 1])
    assert info["total"] == reward and view.observation_space["image"].dtype == np.uint8


def test_actions_are_in_the_environments_own_units():
    view = shoal.gym_view("pendulum")
    assert isinstance(view, GymView) and view.action_space == gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
    assert make("pendulum").spec.action == Box((1,), -1.0, 1.0)
    obs, _ = view.reset(seed=1)
    angle, speed = float(np.arctan2(obs[1], obs[0])), float(obs[2])
    _, reward, terminated, truncated, _ = view.step([1.5])
    assert reward == pytest.approx(-(angle**2 + 0.1 * speed**2 + 0.001 * 1.5**2), rel=1e-4) and not terminated and not truncated


def test_a_view_of_cartpole_follows_gymnasiums():
    view, theirs = GymView("cartpole"), gymnasium.make("CartPole-v1")
    obs, _ = view.reset(seed=5)
    theirs.reset(seed=5)
    theirs.unwrapped.state = np.asarray(obs, np.float64)
    for t in range(60):
        ours, other = view.step(t % 2), theirs.step(t % 2)
        np.testing.assert_allclose(ours[0], other[0], atol=1e-4)
        assert ours[1:4] == other[1:4]
        if ours[2]:
            return
    pytest.fail("the pole should have fallen")


def test_reset_repeats_by_seed_and_goes_on_without():
    one, other = GymView("cartpole", seed=4), GymView("cartpole", seed=9)
    first, second = one.reset(seed=9)[0], one.reset()[0]
    np.testing.assert_array_equal(first, other.reset()[0])  # the constructor's seed is the same
    np.testing.assert_array_equal(second, other.reset()[0])
    assert not np.array_equal(first, second) and not np.array_equal(first, GymView("cartpole").reset()[0])


def test_a_clone_goes_on_identically_and_alone():
    view = GymView("gridworld", width=4, height=4, slip=0.5)
    view.reset(seed=1)
    played(view, [1, 3, 1])
    state = view._state
    clone, actions = view.clone(), [1, 1, 3, 3, 0, 2] * 2
    assert_equal(played(clone, actions), played(view, actions))
    np.testing.assert_array_equal(clone.reset()[0], view.reset()[0])
    assert int(state.count) == 3  # nothing was changed in place
    view.action_space.seed(1)
    apart = view.clone()
    drawn = [int(view.action_space.sample()) for _ in range(20)]
    assert drawn == [int(apart.action_space.sample()) for _ in range(20)] and len(set(drawn)) > 1


def test_objects_are_taken_with_their_maps_and_limits():
    view = GymView(FrameStack(Pendulum(), 2))
    assert view.observation_space.shape == (6,) and isinstance(view.env, maps.TimeLimit)
    assert GymView(make("pendulum")).action_space.high.tolist() == [1.0]
    short = GymView(Pendulum(), max_episode_steps=2)
    short.reset()
    assert [step[3] for step in played(short, [[0.0], [0.0]])] == [False, True]


@pytest.mark.parametrize(("given", "settings", "message"), [
    ("CartPole-v1", {}, "'CartPole-v1' is not compiled"), ("rendezvous", {}, "'rendezvous' has 2 agents"),
    ("cartpol", {}, "did you mean 'cartpole'"), ("cartpole", {"gravty": 1.0}, "did you mean 'gravity'"),
    ("cartpole", {"render_mode": "human"}, "render_mode = 'human': expected one of ansi, rgb_array"),
    ("cartpole", {"seed": -1}, "seed = -1"), (Pendulum(), {"mass": 2.0}, "mass = 2.0: options are for environments by name"),
])
def test_views_refuse(given, settings, message):
    with pytest.raises(ConfigError, match=message):
        GymView(given, **settings)


def test_a_view_refuses_a_choice_that_there_is_not_and_steps_before_a_reset():
    view = GymView("cartpole")
    with pytest.raises(gymnasium.error.ResetNeeded):
        view.step(0)
    view.reset()
    with pytest.raises(ConfigError, match="action = 2: expected one of Discrete"):
        view.step(2)


def test_spaces():
    assert gym_space(Discrete(3)) == gymnasium.spaces.Discrete(3)
    assert gym_space(MultiBinary(4)) == gymnasium.spaces.MultiBinary(4)
    grey = gym_space(Box((2, 2), 0.0, 255.0, "uint8"))
    assert grey == gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)


# pictures ------------------------------------------------------------------------------------------------------------


def test_gridworld_in_characters():
    env = GridWorld(width=4, height=3, obstacles=((1, 1), (-1, 0)), goal=(3, -1))
    assert render.text(env, jnp.int32(4), jnp.int32(4)) == ". . . #\nA # . .\n. . . G"
    wrapped = maps.TimeLimit(FrameStack(env, 2), 5)  # the state is found under the maps
    state, obs = wrapped.reset(jax.random.key(0))
    assert render.text(wrapped, state, obs).startswith("A . . #")
    image = render.rgb(wrapped, state, obs)
    assert image.shape == (240, 320, 3) and tuple(image[40, 40]) == scene.ORANGE and tuple(image[200, 280]) == scene.GREEN
    assert tuple(image[120, 120]) == tuple(image[40, 280]) == scene.INK


def pixels(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Row and column of the middle of what has a colour."""
    return np.argwhere((image == colour).all(-1)).mean(0)


def test_the_cart_is_where_it_is_and_the_pole_leans_where_it_leans():
    env = make("cartpole").env
    left = render.rgb(env, jnp.array([-1.2, 0, 0.2, 0]), None)
    right = render.rgb(env, jnp.array([1.2, 0, -0.2, 0]), None)
    assert pixels(left, scene.INK)[1] == pytest.approx(160 - 1.2 * 320 / 5.28, abs=2)
    assert pixels(right, scene.INK)[1] == pytest.approx(160 + 1.2 * 320 / 5.28, abs=2)
    assert pixels(left, scene.ORANGE)[1] > pixels(left, scene.INK)[1]
    assert pixels(right, scene.ORANGE)[1] < pixels(right, scene.INK)[1]
    lines = render.text(env, jnp.array([-1.2, 0, 0, 0]), None).splitlines()
    cart = next(line for line in lines if "###" in line)
    assert abs((cart.index("#") + cart.rindex("#")) / 2 - 32 + 1.2 * 64 / 5.28) < 2
    assert any("o" in line for line in lines[: lines.index(cart)])  # the pole is above


def test_swinging_things_swing():
    pendulum, acrobot = make("pendulum"), make("acrobot").env
    up, down = (render.rgb(pendulum.env.env, jnp.array([angle, 0.0]), None) for angle in (0.0, np.pi))
    assert pixels(up, scene.ORANGE)[0] < 150 < 170 < pixels(down, scene.ORANGE)[0]
    hanging = render.rgb(acrobot, jnp.zeros(4), None)
    standing = render.rgb(acrobot, jnp.array([np.pi, 0, 0, 0]), None)
    assert pixels(hanging, scene.ORANGE)[0] > 240 and pixels(standing, scene.ORANGE)[0] < 80
    for angle, side in ((0.5, -1), (-0.5, 1)):  # as Gymnasium draws it: a positive angle leans to the left
        image = render.rgb(pendulum.env.env, jnp.array([angle, 0.0]), None)
        assert (pixels(image, scene.ORANGE)[1] - 160) * side > 20


def test_the_car_stands_on_its_hill():
    env = make("mountain_car").env
    valley, top = (render.rgb(env, jnp.array([x, 0.0]), None) for x in (-np.pi / 6, 0.5))
    assert pixels(valley, scene.ORANGE)[0] > pixels(top, scene.ORANGE)[0] + 100
    assert pixels(top, scene.ORANGE)[1] > pixels(valley, scene.ORANGE)[1] + 100
    assert "O" in render.text(env, jnp.array([0.0, 0.0]), None)


def test_anything_else_is_shown_by_its_numbers():
    assert render.text_of(Discrete(4), np.int64(2)) == ". . # .   2"
    lines = render.text_of(Box((2,)), np.array([1.0, -3.0])).splitlines()
    assert lines[0].split() == ["obs[0]", "1", "|##########"] and lines[1].split() == ["obs[1]", "-3", "###############|"]
    image = render.rgb_of(Box((2,)), np.array([1.0, -3.0]))
    assert pixels(image, scene.BLUE)[1] > 160 > pixels(image, scene.ORANGE)[1]
    group = Group((("a", Box(())), ("b", Discrete(7))))
    assert [line.split()[:2] for line in render.text_of(group, {"a": 0.5, "b": 3}).splitlines()] == [["a", "0.5"], ["b", "3"]]
    assert render.text_of(Box((100,)), np.zeros(100)).splitlines()[-1] == "… and 60 more"


def test_an_image_observation_is_its_own_picture():
    seen = np.zeros((2, 3, 3), np.uint8)
    seen[0, 1] = (255, 128, 0)
    image = render.rgb_of(Box((2, 3, 3), 0.0, 255.0, "uint8"), seen)
    every = image.shape[1] // 3
    np.testing.assert_array_equal(image[::every, ::every], seen)


def unpacked_png(data: bytes) -> np.ndarray:
    """A reader for what the writer writes: 8-bit RGB, no filters. Checks every CRC."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (size,) = struct.unpack(">I", data[place:place + 4])
        body = data[place + 4:place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size:place + 12 + size])[0] == zlib.crc32(body)
        chunks[body[:4]] = body[4:]
        place += 12 + size
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def unpacked_lzw(data: bytes, bits: int) -> bytes:
    """LZW by the book: the reader's table runs one entry behind the writer's."""
    stream, place, clear = int.from_bytes(data, "little"), 0, 1 << bits
    table, width, before, out = [], bits + 1, None, bytearray()
    while True:
        code = stream >> place & (1 << width) - 1
        place += width
        if code == clear:
            table, width, before = [bytes([i]) for i in range(clear)] + [b"", b""], bits + 1, None
            continue
        if code == clear + 1:
            return bytes(out)
        entry = table[code] if code < len(table) else before + before[:1]
        out += entry
        if before is not None and len(table) < 4096:
            table.append(before + entry[:1])
            width = min(12, max(width, len(table).bit_length()))
        before = entry


def unpacked_gif(data: bytes) -> list[np.ndarray]:
    """All frames as they are seen, one painted over the other."""
    assert data[:6] == b"GIF89a" and data[-1:] == b"\x3b"
    width, height, flags = struct.unpack("<HHB", data[6:11])
    palette = np.frombuffer(data, np.uint8, 3 << (flags & 7) + 1, 13).reshape(-1, 3)
    place, frames, screen = 13 + palette.size, [], np.zeros((height, width, 3), np.uint8)

    def blocks(place: int) -> tuple[bytes, int]:
        out = b""
        while data[place]:
            out += data[place + 1:place + 1 + data[place]]
            place += 1 + data[place]
        return out, place + 1

    while data[place] != 0x3B:
        if data[place] == 0x21:
            _, place = blocks(place + 2)
            continue
        left, top, wide, high = struct.unpack("<HHHH", data[place + 1:place + 9])
        bits = data[place + 10]
        body, place = blocks(place + 11)
        index = np.frombuffer(unpacked_lzw(body, bits), np.uint8).reshape(high, wide)
        screen[top:top + high, left:left + wide] = palette[index]
        frames.append(screen.copy())
    return frames


def test_png_holds_the_image():
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(np.uint8)
    np.testing.assert_array_equal(unpacked_png(picture.png(image)), image)


@pytest.mark.parametrize("num_colours", [1, 2, 5, 200, 256])
def test_gif_holds_every_frame_exactly_up_to_256_colours(num_colours):
    draw = np.random.default_rng(num_colours)
    palette = draw.integers(0, 256, (num_colours, 3)).astype(np.uint8)
    frames = [palette[draw.integers(0, num_colours, (40, 51))]]  # noise, so that the code table overflows and begins again
    frames.append(frames[0].copy())  # nothing changes
    frames.append(frames[0].copy())
    frames[2][5:9, 3:30] = palette[0]  # a part does
    read = unpacked_gif(picture.gif(frames, 0.1))
    assert len(read) == 3
    np.testing.assert_array_equal(read, frames)


def test_gif_comes_close_with_more_colours():
    ramp = np.stack(np.meshgrid(np.arange(0, 256, 4), np.arange(0, 256, 4), [90]), -1)[:, :, 0].astype(np.uint8)
    (read,) = unpacked_gif(picture.gif([ramp], 0.1))
    assert len(np.unique(read.reshape(-1, 3), axis=0)) <= 256 and np.abs(read.astype(int) - ramp).max() <= 16


def test_lzw_of_every_length():
    draw = np.random.default_rng(1)
    for size in [*range(1, 80), 511, 512, 513, 9000]:
        data = draw.integers(0, 4, size).astype(np.uint8).tobytes()
        assert unpacked_lzw(picture.lzw(data, 2), 2) == data
