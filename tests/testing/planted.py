"""Environments with one defect each, and three without, to see that ``check_env`` tells them apart.

``PLANTED`` maps a class to the checks that must fail: exactly these, no others.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Step, pytree

PLANTED: dict[Any, set[str]] = {}


def planted(*checks: str):
    def note(cls):
        PLANTED[cls] = set(checks)
        return cls

    return note


# Gymnasium's kind ----------------------------------------------------------------------------------------------------


class Walk(gymnasium.Env):
    """A walk from near 0 that ends 6 away, or after 40 steps. Observes the place and the time."""

    observation_space = spaces.Box(-20.0, 20.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-0.5, 0.5), 0
        return self.obs(), {}

    def step(self, action):
        self.place += self.move(action) + 0.1 * self.np_random.normal()
        self.time += 1
        return self.obs(), -abs(self.place), abs(self.place) >= 6, self.time >= 40, {}

    def move(self, action):
        return 2.0 * action - 1.0

    def obs(self):
        return np.array([self.place, self.time / 4], np.float32)


class Drive(Walk):
    """The same with a continuous action."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def move(self, action):
        return float(action[0])


@planted("spec")
class NoSpace(Walk):
    observation_space = None


@planted("reset")
class ResetsOldStyle(Walk):
    def reset(self, **options):
        return super().reset(**options)[0]


@planted("reset")
class RefusesSeed(Walk):
    def reset(self):
        return super().reset()


@planted("step")
class StepsOldStyle(Walk):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


@planted("step")
class Raises(Walk):
    def step(self, action):
        if self.time == 3:
            raise ValueError("out of cheese")
        return super().step(action)


@planted("shape")
class Shrinks(Walk):
    def step(self, action):
        obs, *rest = super().step(action)
        return obs[:1], *rest


@planted("dtype")
class Wide(Walk):
    def obs(self):
        return super().obs().astype(np.float64)


@planted("dtype")
class Lists(Walk):
    def obs(self):
        return super().obs().tolist()


@planted("bounds")
class Tight(Walk):
    observation_space = spaces.Box(-3.0, 20.0, (2,), np.float32)


@planted("bounds")
class ForgetsStart(Walk):
    """Choices from 1 to 3 are declared, and 0 to 2 given."""

    observation_space = spaces.Discrete(3, start=1)

    def obs(self):
        return np.int64(np.sign(np.round(self.place)) + 1)


@planted("finite")
class Nan(Walk):
    def obs(self):
        return super().obs() * (np.nan if self.time == 5 else 1)


@planted("finite")
class InfiniteReward(Walk):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, -np.inf if self.time == 4 else reward, *rest


@planted("reward")
class RewardInList(Walk):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward]), *rest


@planted("reward")
class NoReward(Walk):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, None, *rest


@planted("flags")
class NumberFlags(Walk):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), truncated, info


@planted("info")
class NoInfo(Walk):
    def step(self, action):
        return *super().step(action)[:4], None


@planted("seeding")
class OwnDice(Walk):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.random.default_rng().uniform(-0.5, 0.5)
        return self.obs(), {}


@planted("seeding")
class UnseededSteps(Walk):
    def step(self, action):
        self.place += 0.01 * np.random.default_rng().normal()
        return super().step(action)


@planted("replay")
class Tires(Walk):
    """Something outlives a reset."""

    steps = 0

    def step(self, action):
        self.steps += 1
        self.place += 0.001 * self.steps
        return super().step(action)


@planted("global_random")
class SeedsTheProcess(Walk):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        np.random.seed(seed)
        self.place = np.random.uniform(-0.5, 0.5)
        return self.obs(), {}


@planted("final_observation")
class ResetsItself(Walk):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            obs, _ = self.reset()
        return obs, reward, terminated, truncated, info


@planted("autoreset")
class ResetsAfterwards(Walk):
    over = False

    def reset(self, **options):
        self.over = False
        return super().reset(**options)

    def step(self, action):
        if self.over:
            return self.reset()[0], 0.0, False, False, {}
        answer = super().step(action)
        self.over = answer[2] or answer[3]
        return answer


@planted("truncation")
class BothAtOnce(Walk):
    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        over = terminated or self.time >= 40
        return obs, reward, over, over, info


@planted("limit")
class Endless(Walk):
    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        self.place = np.clip(self.place, -5, 5)
        self.time = min(self.time, 60)
        return obs, reward, False, False, info


@planted("buffer")
class OneBuffer(Walk):
    def __init__(self):
        self.page = np.zeros(2, np.float32)

    def obs(self):
        self.page[:] = super().obs()
        return self.page


@planted("action")
class ClipsInPlace(Drive):
    def move(self, action):
        action *= 0.5
        return float(action[0])


@planted("action_bounds")
class RefusesTheEnd(Drive):
    def move(self, action):
        assert action[0] < 1, "action too high"
        return float(action[0])


@planted("close")
class ClosesOnce(Walk):
    shut = False

    def close(self):
        if self.shut:
            raise RuntimeError("already closed")
        self.shut = True


# shoal's own kind, in Python -----------------------------------------------------------------------------------------


class Room:
    """A room whose warmth drifts, for 20 steps; its state can be taken and given back."""

    SPEC: ClassVar[Any] = EnvSpec("room", obs=Box((1,)), action=Discrete(2), max_episode_steps=20, info=("success",))

    def __init__(self):
        self.spec = self.SPEC

    def reset(self, seed):
        self.warmth, self.time = float(np.random.default_rng(seed).uniform(-1, 1)), 0
        return self.obs()

    def step(self, action):
        self.warmth += 0.3 * action - 0.1
        self.time += 1
        return self.obs(), -abs(self.warmth), False, self.time >= 20, {"success": abs(self.warmth) < 1}

    def obs(self):
        return np.array([self.warmth], np.float32)

    def get_state(self):
        return {"warmth": np.float64(self.warmth), "time": np.int32(self.time)}

    def set_state(self, state):
        self.warmth, self.time = float(state["warmth"]), int(state["time"])

    def close(self):
        pass


@planted("spec")
class BareRoom(Room):
    SPEC = None


@planted("info")
class SilentRoom(Room):
    def step(self, action):
        return *super().step(action)[:4], {}


@planted("truncation")
class FinalRoom(Room):
    """The limit is called the end."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, False, info


@planted("state")
class ForgetfulRoom(Room):
    def get_state(self):
        return {"warmth": np.float64(round(self.warmth, 1)), "time": np.int32(self.time)}


class Pair:
    """Two agents who each hold a number, for 5 steps."""

    def __init__(self):
        self.spec = EnvSpec("pair", obs=Box((1,), -1.0, 1.0), action=Discrete(2), num_agents=2)

    def reset(self, seed):
        self.numbers, self.time = np.random.default_rng(seed).uniform(-1, 1, (2, 1)).astype(np.float32), 0
        return self.numbers.copy()

    def step(self, action):
        self.time += 1
        over = np.full(2, self.time >= 5)
        return self.numbers / (1 + self.time), np.asarray(action, np.float32), over, np.zeros(2, bool), {}

    def close(self):
        pass


@planted("agents")
class SharedReward(Pair):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, float(reward.sum()), *rest


@planted("agents", "step")
class SharedEnd(Pair):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, bool(terminated.all()), truncated, info


# compiled ------------------------------------------------------------------------------------------------------------


class At(NamedTuple):
    place: Any
    time: Any


class Line:
    """A walk along a line, compiled; ends 3 away or after 30 steps. Not decorated: its heirs are."""

    spec = EnvSpec("line", obs=Box((2,), -10.0, 10.0), action=Box((1,), -1.0, 1.0), max_episode_steps=30)

    def reset(self, key):
        state = At(jax.random.uniform(key, minval=-0.1, maxval=0.1), jnp.int32(0))
        return state, self.obs(state)

    def step(self, state, action, key):
        after = At(state.place + action[0], state.time + 1)
        return after, self.answer(after, key)

    def answer(self, after, key):
        return Step(self.obs(after), -jnp.abs(after.place), jnp.abs(after.place) > 3, after.time >= 30, {})

    def obs(self, state):
        return jnp.stack([jnp.clip(state.place, -10, 10), state.time / 4])


@pytree
class GoodLine(Line):
    speed: float = 1.0


@planted("pytree")
class PlainLine(Line):
    pass


@planted("spec")
@pytree
class ListLine(Line):
    @property
    def spec(self):
        return EnvSpec("list_line", obs=Box((2,), [-10.0, -10.0], 10.0), action=Discrete(2))


@planted("jit")
@pytree
class BranchingLine(Line):
    def answer(self, after, key):
        return super().answer(after, key) if after.place > 0 else super().answer(after, key)


@planted("step")
@pytree
class TupleLine(Line):
    def step(self, state, action, key):
        after, step = super().step(state, action, key)
        return after, tuple(step)


@planted("shape")
@pytree
class ColumnLine(Line):
    def obs(self, state):
        return super().obs(state)[:, None]


@planted("dtype")
@pytree
class WholeLine(Line):
    def obs(self, state):
        return super().obs(state).astype(jnp.int32)


@planted("scan")
@pytree
class GrowingLine(Line):
    """A counter that becomes a float."""

    def step(self, state, action, key):
        after, step = super().step(state, action, key)
        return after._replace(time=after.time + 0.0), step


@planted("flags")
@pytree
class FloatFlagsLine(Line):
    def answer(self, after, key):
        step = super().answer(after, key)
        return step._replace(terminated=step.terminated.astype(jnp.float32))


@planted("info")
@pytree
class ChattyLine(Line):
    def answer(self, after, key):
        return super().answer(after, key)._replace(info={"place": after.place})


@planted("pure")
@pytree
class CountingLine(Line):
    calls: ClassVar[list] = []

    def answer(self, after, key):
        self.calls.append(0)
        step = super().answer(after, key)
        return step._replace(reward=step.reward + len(self.calls))


@planted("pure", "global_random")
@pytree
class NumpyLine(Line):
    def answer(self, after, key):
        step = super().answer(after, key)
        return step._replace(reward=step.reward + np.float32(np.random.normal()))


@planted("bounds")
@pytree
class NarrowLine(Line):
    spec = EnvSpec("narrow_line", obs=Box((2,), -1.0, 10.0), action=Box((1,), -1.0, 1.0), max_episode_steps=30)


@planted("finite")
@pytree
class RootLine(Line):
    def obs(self, state):
        return jnp.stack([jnp.sqrt(state.place), state.time / 4])


@planted("final_observation")
@pytree
class RestartingLine(Line):
    """The next episode's first observation at the end."""

    def answer(self, after, key):
        step = super().answer(after, key)
        return step._replace(obs=jnp.where(step.terminated | step.truncated, self.reset(key)[1], step.obs))


@planted("truncation")
@pytree
class FinalLine(Line):
    def answer(self, after, key):
        return super().answer(after, key)._replace(terminated=after.time >= 30, truncated=jnp.zeros((), bool))


@planted("limit")
@pytree
class EndlessLine(Line):
    spec = EnvSpec("endless_line", obs=Box((2,)), action=Box((1,), -1.0, 1.0))

    def answer(self, after, key):
        never = jnp.zeros((), bool)
        return super().answer(after, key)._replace(terminated=never, truncated=never)


@planted("action_bounds")
@pytree
class LogLine(Line):
    """Infinite at the highest action, which no draw in between reaches."""

    def step(self, state, action, key):
        after, step = super().step(state, action, key)
        return after, step._replace(reward=jnp.log(1 - action[0]))


@planted("agents")
@pytree
class TeamLine(Line):
    spec = EnvSpec("team_line", obs=Box((2,), -10.0, 10.0), action=Box((1,), -1.0, 1.0), num_agents=2, max_episode_steps=30)

    def step(self, state, action, key):
        after, step = super().step(state, action[0], key)
        return after, step

    def obs(self, state):
        return jnp.stack([super().obs(state)] * 2)


SOUND = (Walk, Drive, Room, Pair, GoodLine)
