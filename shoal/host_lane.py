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
from shoal.envs import replay
from shoal.errors import EnvError, ReplayError
from shoal.specs import Discrete, EnvSpec, Group, zeros
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


class HostLane:
    """A few Python environments, acted together."""

    def __init__(self, lane: int, size: int, make_fn: Callable[[], HostEnv], *, seed: int, num_steps: int, mode: str,
                 memory_fn: Callable[[int], Memory], acting_fn: Callable[[Params], ActFn], noise_fn: Callable[[int, int], Tree],
                 role: Role):
        self.lane, self.size, self._make, self._seed, self._num_steps, self._mode = lane, size, make_fn, seed, num_steps, mode
        self._acting, self._noise, self._role = acting_fn, noise_fn, role
        self._fresh_memory = memory_fn(size)
        self.envs = [make_fn() for _ in range(size)]
        self.spec: EnvSpec = self.envs[0].spec
        agents = self.spec.agent_shape
        self._episode, self._lengths = [0] * size, [0] * size
        self._returns: list[Any] = [np.zeros(agents) for _ in range(size)]
        self._present = np.ones((size, *agents), bool)
        self._log: list[list[np.ndarray]] = [[] for _ in range(size)]
        self._memory = self._fresh_memory
        self._obs = zeros(self.spec.obs, (size, *agents))
        for i in range(size):
            obs = self._reset(i)
            _check_shape(self.spec, obs, "reset")
            _write(self._obs, i, obs)

    def _reset(self, i: int) -> Tree:
        if self._mode == "fresh" and self._episode[i]:
            self._renew(i)
        return self.envs[i].reset(self._episode_seed(i))

    def _renew(self, i: int) -> None:
        """A new copy, for an environment whose copies carry something over a reset."""
        self.envs[i].close()
        self.envs[i] = self._make()

    def _episode_seed(self, i: int) -> int:
        return rng.host_seed(self._seed, rng.Stream.ENV, self.lane, i, self._episode[i])

    def make(self, params: Params, version: int, seq: int) -> Chunk:
        """The lane's chunk number ``seq``, made with ``params``."""
        noise, memory = self._noise(self.lane, seq), self._memory
        try:
            data, episodes = self._steps(params, noise)
        except EnvError:
            raise
        except Exception as error:
            raise EnvError(f"{self.spec.name}: {type(error).__name__} in step or reset: {error}") from error
        _check_finite(self.spec.name, data)
        return Chunk(self.lane, 0, seq, version, data, memory, self.record(), episodes)

    def _steps(self, params: Params, noise: Tree) -> tuple[Transition, Episodes]:
        """The loop that every step of every host environment goes through: nothing that can wait is done in it."""
        num, agents, act_fn = self._num_steps, self.spec.agent_shape, self._acting(params)
        shape = (num, self.size, *agents)
        obs = zeros(self.spec.obs, (num + 1, self.size, *agents))
        _write(obs, 0, self._obs)
        whole = not isinstance(obs, dict)  # one array: the common, fast case
        rewards: list[Any] = []
        finals: list[tuple[int, int, Tree]] = []  # where episodes ended, and the observations that a reset hides
        terminated, truncated, valid = np.zeros(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
        actions: Any = None
        choices = [np.int64(i) for i in range(self.spec.action.num)] if isinstance(self.spec.action, Discrete) and not agents else None
        steps = [env.step for env in self.envs]
        for t in range(num):
            acted = act_fn(self._memory, obs[t] if whole else _row(obs, t), self._role, _row(noise, t))
            action, self._memory = np.asarray(acted.action), acted.memory
            if actions is None:
                actions = np.empty((num, *action.shape), action.dtype)
            actions[t] = action
            following = obs[t + 1] if whole else _row(obs, t + 1)
            # Gymnasium checks a NumPy integer faster than a Python one
            for i, act in enumerate([choices[a] for a in action.tolist()] if choices else action):
                answer, reward, term, trunc, _ = steps[i](act)
                rewards.append(reward)
                if agents:
                    over = self._leave(i, term, trunc, terminated[t, i], truncated[t, i], valid[t, i])
                elif over := term or trunc:
                    terminated[t, i], truncated[t, i] = term, trunc
                if over:
                    finals.append((t, i, answer))
                    answer = self._restart(i)
                    steps[i] = self.envs[i].step
                if whole:
                    following[i] = answer
                else:
                    _write(following, i, answer)
        self._obs = _row(obs, num)
        reward = np.asarray(rewards, np.float32).reshape(shape)
        episodes = self._settle(reward * valid, finals, actions)
        next_obs = _map(lambda x: x[1:].copy(), obs)
        for t, i, final in finals:
            _write(_row(next_obs, t), i, final)
        last = terminated | truncated | (episodes.ended[..., None] if agents else episodes.ended)
        data = Transition(_map(lambda x: x[:-1], obs), actions, reward, 1.0 - terminated.astype(np.float32), next_obs, last,
                          valid.astype(np.float32), ())
        return data, episodes

    def _leave(self, i: int, term: Any, trunc: Any, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray) -> bool:
        """Note which agents of environment ``i`` took part in this step and which leave with it; whether none is left."""
        valid[...] = self._present[i]
        terminated[...], truncated[...] = term, trunc
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
            self._log[i].append(actions[start:, i])
        return Episodes(ended, returns, lengths)

    def _restart(self, i: int) -> Tree:
        """The next episode of environment ``i``; its policy memory starts afresh too."""
        self._episode[i] += 1
        self._log[i], self._present[i] = [], True
        if not (isinstance(self._memory, tuple) and self._memory == ()):
            self._memory = _map2(lambda now, new: _with_row(now, i, new[i]), self._memory, self._fresh_memory)
        return self._reset(i)

    def record(self) -> HostRecord:
        """Where the lane stands."""
        logs = []
        for log in self._log:
            log[:] = [np.concatenate(log)] if log else []
            logs.append(log[0] if log else np.zeros((0,), np.int32))
        state = tuple(env.get_state() for env in self.envs) if self._mode == "state" else ()  # type: ignore[attr-defined]
        return HostRecord(np.asarray(self._episode, np.int64), np.asarray(self._returns, np.float64),
                          np.asarray(self._lengths, np.int64), self._present.copy(), tuple(logs), self._checksums(), self._memory,
                          _map(np.copy, self._obs), state)

    def restore(self, record: HostRecord, *, inexact: bool) -> list[str]:
        """Stand where ``record`` says, by state or replay. Answers one line per environment that could only start anew."""
        notes = []
        self._episode = [int(x) for x in record.episode]
        self._returns, self._present, self._memory = list(record.returns), record.present.copy(), record.memory
        self._lengths = [int(x) for x in record.lengths]
        self._log = [[actions] if len(actions) else [] for actions in record.actions]
        for i in range(self.size):
            if self._mode == "fresh":
                self._renew(i)
            env = self.envs[i]
            if self._mode == "state":
                env.reset(self._episode_seed(i))
                env.set_state(record.state[i])  # type: ignore[attr-defined]
                obs = _row(record.obs, i)
            else:
                actions = record.actions[i]
                obs = replay.replay(env, self._episode_seed(i), actions.tolist() if actions.ndim == 1 else actions)
            _write(self._obs, i, obs)
        for i in np.flatnonzero(self._checksums() != record.checksum).tolist():
            if not inexact:
                raise ReplayError(f"{self.spec.name}: replaying episode {self._episode[i]} of environment {i} in lane {self.lane} did not "
                                  "lead back to the observation it was saved at; --inexact-resume starts a new episode instead")
            notes.append(f"{self.spec.name}: environment {i} of lane {self.lane} starts a new episode (replay differed)")
            _write(self._obs, i, self._restart(i))
            self._lengths[i], self._returns[i] = 0, np.zeros(self.spec.agent_shape)
        return notes

    def _checksums(self) -> np.ndarray:
        leaves = list(self._obs.values()) if isinstance(self._obs, dict) else [self._obs]
        sums = [[zlib.crc32(np.ascontiguousarray(x[i]).tobytes()) for x in leaves] for i in range(self.size)]
        return np.asarray([zlib.crc32(repr(row).encode()) for row in sums], np.uint32)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _map(fn: Callable[[Any], Any], tree: Tree) -> Tree:
    return {name: _map(fn, x) for name, x in tree.items()} if isinstance(tree, dict) else fn(tree)


def _map2(fn: Callable[[Any, Any], Any], a: Tree, b: Tree) -> Tree:
    if isinstance(a, dict):
        return {name: _map2(fn, a[name], b[name]) for name in a}
    if isinstance(a, (tuple, list)):
        return type(a)(*(_map2(fn, x, y) for x, y in zip(a, b, strict=True))) if hasattr(a, "_fields") else type(a)(
            _map2(fn, x, y) for x, y in zip(a, b, strict=True))
    return fn(a, b)


def _with_row(x: Any, i: int, row: Any) -> np.ndarray:
    out = np.array(x)
    out[i] = row
    return out


def _row(tree: Tree, i: int) -> Tree:
    return tree[i] if not isinstance(tree, dict) else {name: _row(x, i) for name, x in tree.items()}


def _write(tree: Tree, i: int, value: Tree) -> None:
    if isinstance(tree, dict):
        for name, x in tree.items():
            _write(x, i, value[name])
    else:
        tree[i] = value


def _check_shape(spec: EnvSpec, obs: Tree, where: str) -> None:
    def one(space: Any, value: Any, name: str) -> None:
        if isinstance(space, Group):
            for key, inner in space.items:
                if not isinstance(value, dict) or key not in value:
                    raise EnvError(f"{spec.name}: {name} from {where} has no {key!r}")
                one(inner, value[key], f"{name}[{key!r}]")
        elif np.shape(value) != spec.agent_shape + space.shape:
            raise EnvError(f"{spec.name}: {name} from {where} has shape {np.shape(value)}, its space says {spec.agent_shape + space.shape}")

    one(spec.obs, obs, "observation")


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
