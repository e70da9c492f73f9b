"""The lane's twin for environments that live in Python: the same chunk, made by a loop.

Every episode is seeded by its address and its actions are kept, so a lane can be brought back without pickle: by the
environment's own state where it has one, else by replaying the current episode.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal import rng
from shoal.envs import replay, rows
from shoal.errors import EnvError, ReplayError
from shoal.specs import Discrete, EnvSpec, zeros
from shoal.types import Chunk, Episodes, HostEnv, Memory, Params, Role, Transition, Tree

ActFn = Callable[[Memory, Tree, Role, Tree], Any]  # → Acted


class HostRecord(NamedTuple):
    """Where a lane stands, as plain arrays; everything a restart needs."""

    episode: np.ndarray  # [B] int64: number of the current episode, part of its seed's address
    returns: np.ndarray  # [B] or [B, N] float64
    lengths: np.ndarray  # [B] int64
    present: np.ndarray  # [B] or [B, N] bool
    actions: tuple[np.ndarray, ...]  # per environment: the actions of its current episode
    checksum: np.ndarray  # [B] uint32: of the current observations
    memory: Memory
    obs: Tree  # [B, ...]: what the environments showed last
    state: tuple[Tree, ...]  # per environment: its own state, where it has one


STEP, RESET, CLOSE, PLAY = range(4)


class Beat(NamedTuple):
    """What a lane is at, said before it is done: a lane of Python environments keeps it up to date, as numbers in a row."""

    step: int
    env: int
    phase: int  # STEP, RESET, CLOSE, or PLAY for evaluation


class Log:
    """One environment's actions since its last reset, however many."""

    def __init__(self, actions: np.ndarray | None = None):
        self._rows: Any = np.zeros((0,), np.int32) if actions is None else actions
        self.length = len(self._rows)

    def add(self, actions: np.ndarray, at: int | None = None) -> Log:
        """Let ``actions`` follow the first ``at``: all, unless some are written again, as they were."""
        at, num = self.length if at is None else at, len(actions)
        if at == 0 and not len(self._rows):
            self._rows = np.array(actions)
        elif at + num > len(self._rows):
            self._rows = np.concatenate([self._rows[:at], actions, np.empty((max(at, num), *actions.shape[1:]), actions.dtype)])
        else:
            self._rows[at:at + num] = actions
        self.length = at + num
        return self

    def rows(self, length: int | None = None) -> np.ndarray:
        return self._rows[:self.length if length is None else length].copy()


Mark = tuple[Log, int]  # a log up to some length, whatever is added to it later


def grown(mark: Mark, actions: np.ndarray, ended: np.ndarray) -> Mark:
    """One environment's actions since its last reset, from those up to a chunk and the chunk's own [T, ...]."""
    ends = np.flatnonzero(ended)
    log, length = (Log(), 0) if len(ends) else mark
    own = actions[ends[-1] + 1:] if len(ends) else actions
    return log.add(own, length), length + len(own)


class HostLane:
    """A few Python environments, acted together."""

    def __init__(self, lane: int, size: int, make_fn: Callable[[], HostEnv], *, seed: int, num_steps: int, mode: str,
                 memory_fn: Callable[[int], Memory], acting_fn: Callable[[Params], ActFn], noise_fn: Callable[[int, int], Tree],
                 role: Role, beat: Any = None):
        self.lane, self.size, self._make, self._seed, self._num_steps, self._mode = lane, size, make_fn, seed, num_steps, mode
        self._beat: Any = [0] * len(Beat._fields) if beat is None else beat
        self.acting_fn, self._noise, self._role = acting_fn, noise_fn, role
        self._fresh_memory = memory_fn(size)
        self.envs = [make_fn() for _ in range(size)]
        self.spec: EnvSpec = self.envs[0].spec
        agents = self.spec.agent_shape
        self._episode, self._lengths = [0] * size, [0] * size
        self._returns: list[Any] = [np.zeros(agents) for _ in range(size)]
        self._present = np.ones((size, *agents), bool)
        self._log = [Log() for _ in range(size)]
        self._memory = self._fresh_memory
        self._obs, self._like = zeros(self.spec.obs, (size, *agents)), zeros(self.spec.obs, agents)
        for i in range(size):
            rows.write(self._obs, i, self._reset(i))

    def _reset(self, i: int) -> Tree:
        self._beat[1], self._beat[2] = i, RESET
        if self._mode == "fresh" and self._episode[i]:
            self._renew(i)
        obs = self.envs[i].reset(self._episode_seed(i))
        self._beat[2] = STEP
        check_like(self.spec.name, self._like, obs, "reset")
        return obs

    def _renew(self, i: int) -> None:
        """A new copy, for an environment whose copies carry something over a reset."""
        self.envs[i].close()
        self.envs[i] = self._make()

    def _episode_seed(self, i: int) -> int:
        return rng.host_seed(self._seed, rng.Stream.ENV, self.lane, i, self._episode[i])

    def make(self, params: Params, version: int, seq: int) -> Chunk:
        """The lane's chunk number ``seq``, made with ``params``."""
        return chunk(self, params, version, seq)

    def _steps(self, params: Params, noise: Tree) -> tuple[Transition, Episodes]:
        """The loop that every step of every host environment goes through: nothing that can wait is done in it."""
        num, agents, act_fn = self._num_steps, self.spec.agent_shape, self.acting_fn(params)
        shape = (num, self.size, *agents)
        obs = zeros(self.spec.obs, (num + 1, self.size, *agents))
        rows.write(obs, 0, self._obs)
        whole = not isinstance(obs, dict)  # one array: the common, fast case
        kind = (obs.shape[2:], obs.dtype) if whole else None
        rewards: list[Any] = []
        finals: list[tuple[int, int, Tree]] = []  # where episodes ended, and the observations that a reset hides
        terminated, truncated, valid = np.zeros(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
        actions: Any = None
        choices = [np.int64(i) for i in range(self.spec.action.num)] if isinstance(self.spec.action, Discrete) and not agents else None
        steps, beat = [env.step for env in self.envs], self._beat
        for t in range(num):
            acted = act_fn(self._memory, obs[t] if whole else rows.row(obs, t), self._role, rows.row(noise, t))
            action, self._memory = np.asarray(acted.action), acted.memory
            if actions is None:
                actions = np.empty((num, *action.shape), action.dtype)
            actions[t] = action
            following = obs[t + 1] if whole else rows.row(obs, t + 1)
            beat[0] = t
            # Gymnasium checks a NumPy integer faster than a Python one
            for i, act in enumerate([choices[a] for a in action.tolist()] if choices else action):
                beat[1] = i
                answer, reward, term, trunc, _ = steps[i](act)
                if kind is None or type(answer) is not np.ndarray or (answer.shape, answer.dtype) != kind:
                    check_like(self.spec.name, self._like, answer, "step")
                rewards.append(reward)
                if agents:
                    over = self._leave(i, term, trunc, terminated[t, i], truncated[t, i], valid[t, i])
                elif over := term or trunc:
                    terminated[t, i], truncated[t, i] = term, trunc
                if over:
                    finals.append((t, i, rows.each(np.array, answer)))  # the environment may reset in place
                    answer = self._restart(i)
                    steps[i] = self.envs[i].step
                if whole:
                    following[i] = answer
                else:
                    rows.write(following, i, answer)
        self._obs = rows.row(obs, num)
        reward = _as_numbers(self.spec.name, rewards, shape)
        episodes = self._settle(reward * valid, finals, actions)
        next_obs = rows.each(lambda x: x[1:].copy(), obs)
        for t, i, final in finals:
            rows.write(rows.row(next_obs, t), i, final)
        last = terminated | truncated | (episodes.ended[..., None] if agents else episodes.ended)
        data = Transition(rows.each(lambda x: x[:-1], obs), actions, reward, 1.0 - terminated.astype(np.float32), next_obs, last,
                          valid.astype(np.float32), ())
        return data, episodes

    def _leave(self, i: int, term: Any, trunc: Any, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray) -> bool:
        """Note which agents of environment ``i`` took part in this step and which leave with it; whether none is left."""
        valid[...] = self._present[i]
        for name, kept, given in (("terminated", terminated, term), ("truncated", truncated, trunc)):
            if np.shape(given) not in ((), kept.shape):
                raise EnvError(f"{self.spec.name}: {name} from step has shape {np.shape(given)}, expected {kept.shape}")
            kept[...] = given
        self._present[i] &= ~(terminated | truncated)
        return not self._present[i].any()

    def _settle(self, reward: np.ndarray, finals: list[tuple[int, int, Tree]], actions: np.ndarray) -> Episodes:
        """Returns and lengths of what ended in a chunk, and where the running episodes stand after it."""
        num = self._num_steps
        ended, lengths = np.zeros((num, self.size), bool), np.zeros((num, self.size), np.int32)
        returns = np.zeros(reward.shape, np.float32)
        starts = [0] * self.size
        for t, i, _ in finals:
            part = reward[starts[i]:t + 1, i].sum(axis=0, dtype=np.float64)
            ended[t, i], returns[t, i], lengths[t, i] = True, self._returns[i] + part, self._lengths[i] + t + 1 - starts[i]
            starts[i], self._lengths[i], self._returns[i] = t + 1, 0, np.zeros(self.spec.agent_shape)
        for i, start in enumerate(starts):
            self._returns[i] = self._returns[i] + reward[start:, i].sum(axis=0, dtype=np.float64)
            self._lengths[i] += num - start
            self._log[i].add(actions[start:, i])
        return Episodes(ended, returns, lengths)

    def _restart(self, i: int) -> Tree:
        """The next episode of environment ``i``; its policy memory starts afresh too."""
        self._episode[i] += 1
        self._log[i], self._present[i] = Log(), True
        if not (isinstance(self._memory, tuple) and self._memory == ()):
            self._memory = map2(lambda now, new: with_row(now, i, new[i]), self._memory, self._fresh_memory)
        return self._reset(i)

    def record(self) -> HostRecord:
        """Where the lane stands."""
        return self.stand()._replace(actions=tuple(log.rows() for log in self._log))

    def stand(self) -> HostRecord:
        """Where the lane stands, without the actions that led there: whoever has its chunks has those."""
        state = tuple(env.get_state() for env in self.envs) if self._mode == "state" else ()  # type: ignore[attr-defined]
        return HostRecord(np.asarray(self._episode, np.int64), np.asarray(self._returns, np.float64),
                          np.asarray(self._lengths, np.int64), self._present.copy(), (), self._checksums(), self._memory,
                          rows.each(np.copy, self._obs), state)

    def restore(self, record: HostRecord, *, inexact: bool) -> list[str]:
        """Stand where ``record`` says, by state or replay. Answers one line per environment that could only start anew."""
        notes = []
        self._episode = [int(x) for x in record.episode]
        self._returns, self._present, self._memory = list(record.returns), record.present.copy(), record.memory
        self._lengths = [int(x) for x in record.lengths]
        self._log = [Log(np.array(actions)) for actions in record.actions]
        for i in range(self.size):
            if self._mode == "fresh":
                self._renew(i)
            env = self.envs[i]
            if self._mode == "state":
                env.reset(self._episode_seed(i))
                env.set_state(record.state[i])  # type: ignore[attr-defined]
                obs = rows.row(record.obs, i)
            else:
                actions = record.actions[i]
                obs = replay.replay(env, self._episode_seed(i), actions.tolist() if actions.ndim == 1 else actions)
            rows.write(self._obs, i, obs)
        for i in np.flatnonzero(self._checksums() != record.checksum).tolist():
            if not inexact:
                raise ReplayError(f"{self.spec.name}: replaying episode {self._episode[i]} of environment {i} in lane {self.lane} did not "
                                  "lead back to the observation it was saved at; --inexact-resume starts a new episode instead")
            notes.append(f"{self.spec.name}: environment {i} of lane {self.lane} starts a new episode (replay differed)")
            rows.write(self._obs, i, self._restart(i))
            self._lengths[i], self._returns[i] = 0, np.zeros(self.spec.agent_shape)
        return notes

    def _checksums(self) -> np.ndarray:
        return checksums(self._obs, self.size)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def chunk(lane: Any, params: Params, version: int, seq: int) -> Chunk:
    """A lane's chunk number ``seq``, with what it needs to go on from there; refused where it holds what is not a number."""
    noise, memory = lane._noise(lane.lane, seq), lane._memory
    data, episodes = guarded(lane.spec.name, lambda: lane._steps(params, noise))
    _check_finite(lane.spec.name, data)
    return Chunk(lane.lane, 0, seq, version, data, memory, None, episodes)  # where it stands is asked for where that is needed


def guarded(name: str, act_fn: Callable[[], Any]) -> Any:
    """What ``act_fn`` answers; whatever an environment raises in it is an error of the environment."""
    try:
        return act_fn()
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"{name}: {type(error).__name__} in step or reset: {error}") from error


def checksums(obs: Tree, size: int) -> np.ndarray:
    """One number for each row of ``obs`` [B, ...]."""
    arrays = list(rows.arrays(obs))
    sums = [[zlib.crc32(np.ascontiguousarray(x[i]).tobytes()) for x in arrays] for i in range(size)]
    return np.asarray([zlib.crc32(repr(row).encode()) for row in sums], np.uint32)


def map2(fn: Callable[[Any, Any], Any], a: Tree, b: Tree) -> Tree:
    if isinstance(a, dict):
        return {name: map2(fn, a[name], b[name]) for name in a}
    if isinstance(a, (tuple, list)):
        return type(a)(*(map2(fn, x, y) for x, y in zip(a, b, strict=True))) if hasattr(a, "_fields") else type(a)(
            map2(fn, x, y) for x, y in zip(a, b, strict=True))
    return fn(a, b)


def with_row(x: Any, i: Any, row: Any) -> np.ndarray:
    out = np.array(x)
    out[i] = row
    return out


def check_like(world: str, like: Tree, obs: Tree, where: str, name: str = "observation") -> None:
    """Refuse an observation that is not as its space says, ``like``: what NumPy would stretch, cut or round to fit."""
    if isinstance(like, dict):
        for key, inner in like.items():
            if not isinstance(obs, dict) or key not in obs:
                raise EnvError(f"{world}: {name} from {where} has no {key!r}")
            check_like(world, inner, obs[key], where, f"{name}[{key!r}]")
        return
    given = np.asarray(obs)
    if given.shape != like.shape:
        raise EnvError(f"{world}: {name} from {where} has shape {given.shape}, its space says {like.shape}")
    if not np.can_cast(given.dtype, like.dtype, "same_kind") and not _same(given, like.dtype):
        raise EnvError(f"{world}: {name} from {where} has dtype {given.dtype}, its space says {like.dtype}")


def _same(given: np.ndarray, dtype: np.dtype) -> bool:
    """Whether these numbers can be of another type as they are."""
    if given.dtype.kind not in "biuf":
        return False
    with np.errstate(invalid="ignore"):
        return bool((given.astype(dtype) == given).all())


def _as_numbers(world: str, rewards: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Rewards of T steps of B environments, in the order they came, as [T, B] or [T, B, N]; one that does not fit is named."""
    try:
        return np.asarray(rewards, np.float32).reshape(shape)
    except (TypeError, ValueError):
        for reward in rewards:
            try:
                given = np.asarray(reward, np.float32).shape
            except (TypeError, ValueError):
                raise EnvError(f"{world}: reward from step is {reward!r}, not a number") from None
            if given != shape[2:]:
                raise EnvError(f"{world}: reward from step has shape {given}, expected {shape[2:]}") from None
        raise


def _check_finite(name: str, data: Transition) -> None:
    def one(field: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                one(f"{field}[{key!r}]", inner)
        elif np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            t, i = np.argwhere(~np.isfinite(value))[0][:2]
            raise EnvError(f"{name}: {field} is not finite at step {t} of environment {i}")

    one("reward", data.reward)
    one("observation", data.next_obs)
