"""Runs under maps asked for by name, and ``shoal eval --render``: what is played, what is written, what is refused."""

from __future__ import annotations

import json
import struct
import tomllib

import gymnasium
import jax
import numpy as np
import pytest

import shoal
from shoal import cli, config, registry
from shoal.envs import build, make, playback
from shoal.errors import ConfigError, MissingError
from shoal.plan import Plan
from shoal.specs import Box, Discrete, EnvSpec

MAPS = ["--frame-stack", "3", "--sticky-actions", "0.25", "--flatten-obs"]
SMALL = ["--preset", "none", "--num-envs", "2", "--num-steps", "16", "--num-minibatches", "1", "--num-epochs", "1",
         "--hidden", "8", "--eval-episodes", "1", "--checkpoint-every", "0", "--quiet"]
SAME = {"num_envs": 2, "eval_episodes": 1, "checkpoint_every": "0", "preset": "none", "frame_stack": 3, "sticky_actions": 0.25,
        "flatten_obs": True}


def agent(**more):
    return shoal.PPO(num_steps=16, num_minibatches=1, num_epochs=1, hidden=(8,), **more)


class Untrained(shoal.Callback):
    """Leaves the run at checkpoint 0: a policy that has learned nothing is as good to look at, and nothing is compiled for it."""

    def on_start(self, loop):
        raise InterruptedError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("render") / "run"
    with pytest.raises(InterruptedError):
        shoal.train(agent(), "cartpole", steps=64, max_episode_steps=40, out=out, callbacks=(Untrained(),), **SAME)
    return out


@pytest.fixture(scope="module")
def gym_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("render") / "gym"
    assert cli.main(["train", "ppo", "FrozenLake-v1", "--steps", "96", "--out", str(out), *SMALL, *MAPS]) == 0
    return out


def said(capsys, *argv):
    code = cli.main(["eval", *map(str, argv)])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


# options by name -----------------------------------------------------------------------------------------------------


def test_help_says_what_the_maps_do_and_in_which_order(capsys):
    assert cli.main(["train", "ppo", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--sticky-actions X" in text and "--frame-stack N" in text and "--flatten-obs " in text
    assert "Applied first." in text and "Applied after --frame-stack; bounded actions are rescaled last." in text


def test_maps_are_recorded_and_part_of_the_plan(gym_run):
    record = tomllib.loads((gym_run / "config.toml").read_text())
    assert (record["frame_stack"], record["sticky_actions"], record["flatten_obs"]) == (3, 0.25, True)
    plan = config.plan_from_dict(record)
    assert build.from_plan(plan).spec == make("FrozenLake-v1", sticky_actions=0.25, frame_stack=3, flatten_obs=True).spec
    assert build.from_plan(plan).spec.obs == Box((3 * 16,), 0.0, 1.0)
    named = build.from_plan(Plan(env="cartpole", max_episode_steps=40, frame_stack=3, sticky_actions=0.25, flatten_obs=True))
    assert named == make("cartpole", 40, sticky_actions=0.25, frame_stack=3, flatten_obs=True)
    del record["frame_stack"], record["sticky_actions"], record["flatten_obs"]  # a record from before there were any
    older = config.plan_from_dict(record)
    assert (older.frame_stack, older.sticky_actions, older.flatten_obs) == (1, 0.0, False)


@pytest.mark.parametrize(("flags", "message"), [
    (["--frame-stack", "0"], "frame_stack = 0: expected a number of at least 1"),
    (["--frame-stack", "two"], "frame_stack = 'two': expected a whole number"),
    (["--frame-stack", "5000"], "frame_stack = 5000: expected a number of at most 1024"),
    (["--sticky-actions", "1.5"], "sticky_actions = 1.5: expected a number of at most 1"),
    (["--sticky-actions", "-0.1"], "sticky_actions = -0.1: expected a number of at least 0"),
    (["--flaten-obs"], "unknown flag --flaten-obs; did you mean '--flatten-obs'"),
])
def test_bad_maps_are_refused(flags, message, capsys, tmp_path):
    assert cli.main(["train", "ppo", "cartpole", "--out", str(tmp_path / "run"), *flags]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("setting", "message"), [({"flatten_obs": 1}, "flatten_obs = 1: expected true or false"),
                                                  ({"frame_stack": True}, "frame_stack = True")])
def test_a_config_with_bad_maps_is_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        config.plan_from_dict({"algo": "ppo", "env": "cartpole", "steps": 10} | setting)


def test_a_resumed_run_under_maps_is_the_run_never_stopped(tmp_path):
    """On the host side, where the environment is replayed: the stack and what stuck come back with it."""
    whole = shoal.train(agent(), "FrozenLake-v1", steps=160, out=tmp_path / "whole", **SAME)
    shoal.train(agent(horizon=160.0), "FrozenLake-v1", steps=96, out=tmp_path / "part", **SAME)
    part = shoal.resume(tmp_path / "part", steps=64)
    assert part.result["steps"] == whole.result["steps"] == 160
    assert part.result["params_sha256"] == whole.result["params_sha256"]


def test_a_loaded_policy_maps_what_the_environment_shows(run):
    policy, env = shoal.load(run), make("cartpole", 40, frame_stack=3, flatten_obs=True)
    state, stacked = env.reset(jax.random.key(3))
    for _ in range(4):
        mapped = policy.act(np.asarray(stacked))  # already as the policy sees it
        policy_raw = policy.act(np.asarray(stacked)[-4:])  # as the environment shows it
        assert mapped == policy_raw
        state, step = env.step(state, mapped, jax.random.key(0))
        stacked = step.obs
    policy.reset()
    assert policy._observer(np.arange(4.0)).tolist() == [0, 1, 2, 3] * 3


# --render ------------------------------------------------------------------------------------------------------------


def test_text_plays_the_first_evaluation_episode(run, capsys):
    code, out, _ = said(capsys, run, "--render", "text", "--seed", "5")
    assert code == 0
    *shots, last = out.strip().split("\n\n")
    score = shoal.evaluate(run, 1, seed=5)["mean_return"]
    steps = int(score)  # a reward of 1 for every step
    assert len(shots) == steps + 1 and shots[0].endswith("step 0  reward 0.00  return 0.00")
    assert shots[-1].endswith(f"step {steps}  reward 1.00  return {score:.2f}") and "###" in shots[-1] and "\x1b" not in out
    assert last == f"return {score:.2f} in {steps} steps; {steps + 1} frames"


def test_rgb_writes_a_file_for_every_frame_and_leaves_none_from_before(run, capsys):
    old = run / "render" / "frame-00077.png"
    old.parent.mkdir(exist_ok=True)
    old.write_bytes(b"old")
    code, out, _ = said(capsys, run, "--render", "rgb", "--max-frames", "4", "--json")
    result = json.loads(out.splitlines()[-1])
    assert code == 0 and result["path"] == str(run / "render")
    assert (result["frames"], result["length"], result["over"]) == (4, 3, False)
    files = sorted(run.glob("render/*.png"))
    assert [file.name for file in files] == [f"frame-0000{i}.png" for i in range(4)]
    sizes = {struct.unpack(">II", file.read_bytes()[16:24]) for file in files}
    assert sizes == {(320, 105)} and len({file.read_bytes() for file in files}) == 4  # it moves


def test_gif_is_written_and_said_where(run, capsys):
    code, out, _ = said(capsys, run, "--render", "gif", "--max-frames", "5", "--sampled")
    data = (run / "render" / "episode.gif").read_bytes()
    assert code == 0 and data.count(b"\x21\xf9\x04") == 5
    assert out.strip() == f"return 4.00 in 4 steps (cut: --max-frames); 5 frames; written to {run / 'render' / 'episode.gif'}"


@pytest.mark.parametrize(("flags", "message"), [
    (["--render", "gift"], "render = 'gift': expected one of text, rgb, gif; did you mean 'gif'? (--render)"),
    (["--render", "text", "--episodes", "3"], "--episodes is for scores; --render shows one episode"),
    (["--max-frames", "3"], "--max-frames goes with --render"),
    (["--render", "gif", "--max-frames", "0"], "max_frames = 0: expected a number of at least 1"),
])
def test_bad_flags_are_refused(run, flags, message, capsys):
    code, _, err = said(capsys, run, *flags)
    assert code == 2 and message in err


def test_gymnasium_draws_its_own(gym_run, capsys):
    code, out, _ = said(capsys, gym_run, "--render", "text", "--max-frames", "3")
    assert code == 0 and "SFFF\nFHFH\nFFFH\nHFFG" in out.replace("\x1b[41mS\x1b[0m", "S")


class Mute(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        pass


class Broken(Mute):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def render(self):
        raise gymnasium.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[classic-control]"`')


class Host:
    """A user's own world in Python: it has no picture but its numbers."""

    spec = EnvSpec("host", Box((1,)), Discrete(3))

    def __init__(self):
        self.total = 0.0

    def reset(self, seed):
        self.total = 0.0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.total += action
        return np.array([self.total]), float(action), self.total >= 6, False, {}

    def close(self):
        pass


@pytest.fixture
def worlds(monkeypatch):
    monkeypatch.setitem(registry._added, "env", {"host": Host})
    for name, entry in (("ShoalMute-v0", Mute), ("ShoalBroken-v0", Broken)):
        gymnasium.register(name, entry_point=entry)
    yield
    for name in ("ShoalMute-v0", "ShoalBroken-v0"):
        del gymnasium.registry[name]


def test_what_cannot_be_drawn_is_said_in_one_line(worlds):
    with pytest.raises(ConfigError, match="'ShoalMute-v0' has no ansi render mode, only none; it cannot be shown"):
        playback.open_env(Plan(env="ShoalMute-v0"), "text")
    with pytest.raises(ConfigError, match="'CartPole-v1' has no ansi render mode, only human, rgb_array; try --render rgb"):
        playback.open_env(Plan(env="CartPole-v1"), "text")
    env = playback.open_env(Plan(env="ShoalBroken-v0"), "gif")
    with pytest.raises(MissingError, match="'ShoalBroken-v0' cannot be drawn: pygame is not installed, run `pip"):
        next(playback.play(env, lambda obs, t: 0, mode="gif", seed=0, max_steps=3))


def test_a_host_world_is_shown_by_its_numbers(worlds):
    env = playback.open_env(Plan(env="host", max_episode_steps=10), "text")
    shots = list(playback.play(env, lambda obs, t: np.int64(2), mode="text", seed=0, max_steps=10))
    assert [(shot.step, shot.reward, shot.total, shot.over) for shot in shots] == [
        (0, 0.0, 0.0, False), (1, 2.0, 2.0, False), (2, 2.0, 4.0, False), (3, 2.0, 6.0, True)]
    assert shots[-1].picture.split() == ["obs[0]", "6", "|" + "#" * 17]


def test_agents_are_shown_until_the_last_leaves():
    env = playback.open_env(Plan(env="matrix_game", env_options={"length": 3}), "gif")
    shots = list(playback.play(env, lambda obs, t: np.zeros(2, np.int32), mode="gif", seed=0, max_steps=10))
    assert len(shots) == 4 and shots[-1].total == 12.0 and shots[-1].over and shots[0].picture.shape[2] == 3


def test_wide_pictures_are_thinned_for_a_gif():
    assert playback.thin(np.zeros((400, 600, 3), np.uint8)).shape == (200, 300, 3)
    assert playback.thin(np.zeros((90, 320, 3), np.uint8)).shape == (90, 320, 3)
