"""Stacks of which every row keeps the newest frame alone: what comes back is every transition, against a model that keeps them whole."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.buffers.host import Host
from shoal.buffers.mapped import Mapped
from shoal.buffers.prioritised import Prioritised
from shoal.buffers.shards import Shards
from shoal.buffers.uniform import State, Uniform
from shoal.envs import stacking
from shoal.specs import MASK, STATE, Box, Discrete, EnvSpec, Group
from shoal.types import Transition

LANES, ENVS, NUM = 2, 2, 4
ADDRESS = np.zeros(3, np.int32)  # extras: lane, step and environment
FILM = EnvSpec("film", Box((17, 16, 1), 0, 255, "uint8"), Discrete(4))
HALF = replace(FILM, obs=Box((150,), dtype="bfloat16"))
MIXED = replace(FILM, obs=Group((("eye", FILM.obs), ("far", Box((20, 15), 0, 255, "uint8")), ("near", Box((2,))), (MASK, Box((4,))),
                                 (STATE, Box((20, 20, 4), 0, 255, "uint8")))))


class Stream:
    """What lanes record: chunks of random episodes, and every transition of them by lane, step and environment."""

    def __init__(self, spec: EnvSpec, steps: int, end: float) -> None:
        self.space, self.steps, self.end = spec.obs, steps, end
        self.draw, self.rows, self.count = np.random.default_rng(7), {}, [0] * LANES
        self.now = {}  # the running stack of each environment

    def frame(self, space):
        if isinstance(space, Group):
            return {name: self.frame(inner) for name, inner in space.items}
        return self.draw.integers(0, 256, space.shape).astype(jnp.dtype(space.dtype))

    def step(self, lane: int, step: int, env: int) -> Transition:
        obs = self.now.get((lane, env))
        if obs is None:
            obs = stacking.fill(self.space, self.frame(self.space), NUM, np)
        following = stacking.push(self.space, obs, self.frame(self.space), np)
        over = bool(self.draw.random() < self.end)
        self.now[lane, env] = None if over else following
        self.rows[lane, step, env] = Transition(obs, np.int32(env), np.float32(self.draw.integers(9)), np.float32(not (over and step % 2)),
                                                following, np.bool_(over), np.float32(1), np.int32([lane, step, env]))
        return self.rows[lane, step, env]

    def chunk(self, lane: int) -> Transition:
        first = self.count[lane] * self.steps
        self.count[lane] += 1
        rows = [self.step(lane, first + t, env) for t in range(self.steps) for env in range(ENVS)]
        return jax.tree.map(lambda *x: np.stack(x).reshape((self.steps, ENVS, *x[0].shape)), *rows)

    def interrupt(self, lane: int) -> None:
        for env in range(ENVS):
            self.now[lane, env], newest = None, (lane, self.count[lane] * self.steps - 1, env)
            self.rows[newest] = self.rows[newest]._replace(last=np.bool_(True))

    def n_step(self, lane: int, step: int, env: int, num: int, discount: float) -> Transition:
        """The transition over up to ``num`` steps."""
        first = end = self.rows[lane, step, env]
        reward, power = first.reward, np.float32(1)
        for ahead in range(1, num):
            if end.last or (lane, step + ahead, env) not in self.rows:
                break
            end, power = self.rows[lane, step + ahead, env], power * np.float32(discount)
            reward = reward + power * end.reward
        return first._replace(reward=reward, alive=end.alive * power, next_obs=end.next_obs, last=end.last)

    def sequence(self, lane: int, step: int, env: int, length: int) -> Transition:
        """A window of ``length`` steps, those after an end of no weight."""
        rows, over = [], False
        for row in (self.rows[lane, step + ahead, env] for ahead in range(length)):
            rows.append(row._replace(valid=np.float32(not over)))
            over = over or bool(row.last)
        return jax.tree.map(lambda *x: np.stack(x), *rows)


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert [x.dtype for x in jax.tree.leaves(one)] == [x.dtype for x in jax.tree.leaves(other)]
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_drawn(stream, buffer, sample, filled):
    """Every drawn transition, or window, is the model's, and of a row that is held; answers the rows seen."""
    batch, seen = jax.tree.map(np.asarray, sample.batch), set()
    for place in range(buffer.batch_size):
        one = jax.tree.map(lambda x, place=place: x[:, place] if buffer.length else x[place], batch)
        lane, step, env = (int(x) for x in one.extras.reshape((-1, 3))[0])
        assert stream.count[lane] * stream.steps - filled[lane] <= step
        assert_equal(stream.sequence(lane, step, env, buffer.length) if buffer.length else
                     stream.n_step(lane, step, env, buffer.n_step, buffer.discount), one)
        seen.add((lane, step, env))
    return seen


ORDER = [0, 0, 1]  # lane 0 is twice as fast
CASES = {  # what is drawn, chunk length, share of ends, chunks
    "single steps": (FILM, Uniform(capacity=48, batch_size=32, start=1), 1, 0.25, 90),
    "three steps by priority": (MIXED, Prioritised(capacity=48, batch_size=24, start=1, n_step=3, discount=0.5), 3, 0.2, 40),
    "sequences of halves": (HALF, Uniform(capacity=96, batch_size=24, start=1, length=5), 8, 0.1, 20),
    "hardly anything but ends": (FILM, Uniform(capacity=12, batch_size=8, start=1, n_step=3, discount=0.5), 1, 0.8, 60),
}


@pytest.mark.parametrize("name", CASES)
def test_every_transition_comes_back_wherever_it_lies(name, tmp_path):
    spec, buffer, steps, end, chunks = CASES[name]
    stream, sizes = Stream(spec, steps, end), (stacking.stacked_spec(spec, NUM), LANES * ENVS, LANES, steps, ADDRESS)
    stores = [Host(buffer), Mapped(buffer, str(tmp_path / "one"), 9_000)]
    add, sample, interrupt, device = jax.jit(buffer.add), jax.jit(buffer.sample), jax.jit(buffer.interrupt), buffer.init(*sizes)
    states, seen, most = [x.init(*sizes) for x in stores], set(), device.form[0].ring.capacity // (LANES * ENVS)
    for i in range(chunks):
        lane = ORDER[i % 3]
        if i % 13 == 12:
            stream.interrupt(lane)
            device, states = interrupt(device, lane), [x.interrupt(s, lane) for x, s in zip(stores, states, strict=True)]
        data = stream.chunk(lane)
        device, states = add(device, lane, data), [x.add(s, lane, data) for x, s in zip(stores, states, strict=True)]
        if i == chunks * 2 // 3:  # what was saved goes on beside what was not
            (tmp_path / "saved").mkdir()
            states[1].store.save(tmp_path / "saved")
            stores.append(Mapped(buffer, str(tmp_path / "two"), 9_000))
            copied = jax.tree.map(lambda x: x.copy(), (device.index, device.priority))
            states.append(State(stores[2].init(*sizes).store, *copied, device.form))
            states[2].store.load(tmp_path / "saved")
        filled = np.asarray(device.index.filled)
        assert 0 < filled[lane] <= most
        if (i % 5 and i < chunks - 8) or not bool(buffer.ready(device)):
            continue
        device, drawn = sample(device, jax.random.key(i))
        for k, store in enumerate(stores):
            states[k], other = store.sample(states[k], jax.random.key(i))
            assert_equal(drawn, other)
        seen |= assert_drawn(stream, buffer, drawn, filled)
    assert len(states) == 3 and stream.count[0] * steps > 3 * most and len(seen) > 40
    assert_equal(device.store, states[0].store)


def test_what_is_kept_of_a_stack():
    """Frames of what is stacked and large; all else as it is, in the type that is declared."""
    buffer = Uniform(capacity=1_000, batch_size=8, start=1)
    form = buffer.form(stacking.stacked_spec(MIXED, NUM), 4, 2, 3)
    assert {f.name: (f.kind, f.frames, f.kept) for f in form.fields if f.name.startswith("obs")} == {
        "obs.action_mask": ("word", 1, (4,)), "obs.eye": ("pool", 4, (17, 16, 1)), "obs.far": ("pool", 4, (20, 15, 1)),
        "obs.near": ("word", 1, (8,)), "obs.state": ("pool", 1, (20, 20, 4))}
    assert (form.ring.slots, form.ring.back, form.ring.capacity) == (255, 3, 1008)
    assert buffer.form(stacking.stacked_spec(FILM, NUM), 4, 2, 8).ring.back == 8  # whole chunks
    assert buffer.form(FILM, 4, 2, 3).ring == form.ring._replace(slots=252, back=0)
    shards = Shards(buffer, 2).init(stacking.stacked_spec(FILM, NUM), 4, 2, 3)  # chunks of lanes are mixed there
    assert shards.store.pool[0].shape[2:] == (17, 16, 4)
    for spec, dtype in ((FILM, "uint8"), (HALF, "bfloat16")):
        assert [x.dtype for x in buffer.init(stacking.stacked_spec(spec, NUM), 4).store.pool] == [jnp.dtype(dtype)]


def test_memory_falls_with_the_number_of_frames():
    buffer = Uniform(capacity=100_000, batch_size=8, start=1)
    spec = stacking.stacked_spec(replace(FILM, obs=Box((84, 84), 0, 255, "uint8")), NUM)
    for steps in (1, 4):
        apart, whole = (buffer.nbytes(replace(spec, frames=frames), 8, 1, steps) for frames in (NUM, 1))
        assert NUM * 0.99 < whole / apart <= NUM
        assert apart < 1.07 * 100_000 * 84 * 84


def test_only_a_stack_that_is_shown_as_it_is_counts_as_one():
    stacked = stacking.stacked_spec(FILM, NUM)
    assert (FILM.frames, stacked.frames, stacking.stacked_spec(stacked, 2).frames) == (1, 4, 2)
    assert stacking.flat_spec(stacked).frames == 1 == stacked.single().frames
