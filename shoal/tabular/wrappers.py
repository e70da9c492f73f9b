"""Maps from a host environment to one that a table can be learned on, and many copies of one stepped together. No JAX until used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.errors import ConfigError
from shoal.specs import MASK, Discrete, EnvSpec, Group, MultiBinary, Space
from shoal.tabular.discrete import MOST_BATCHED, Bound, Choices, Rows, actions_of, in_words, rows_of

if TYPE_CHECKING:
    from shoal.types import HostEnv


def flatten_discrete(env: HostEnv) -> HostEnv:
    """``env`` with one number for what it shows and one for what is done: choices of several at once become one, in C order.

    Where observations carry an action mask, they become a dict of ``obs`` and ``action_mask``, one entry for each of the new actions.
    """
    return DiscreteEnv(env, rows_of(env.spec.obs), actions_of(env.spec.action))


def discretise(env: HostEnv, bins: int | tuple[int, ...], low: Bound = None, high: Bound = None) -> HostEnv:
    """``env`` with one number for what it shows, continuous numbers put in bins as ``rows_of`` does; its actions stay."""
    return DiscreteEnv(env, rows_of(env.spec.obs, bins, low, high))


class DiscreteEnv:
    """A host environment that shows rows, and takes choices where ``choices`` are given.

    ``get_state`` and ``set_state`` are there where the mapped environment has them.
    """

    def __init__(self, env: HostEnv, rows: Rows, choices: Choices | None = None):
        _check_single(env.spec)
        self.env, self._rows, self._choices = env, rows, choices
        masked = isinstance(env.spec.obs, Group) and MASK in env.spec.obs
        self._read = self._row_and_mask if masked else rows.index
        shown: Space = _discrete(rows.num)
        if masked:
            mask = env.spec.obs[MASK] if choices is None else MultiBinary(choices.num)  # type: ignore[index]
            shown = Group((("obs", shown), (MASK, mask)))
        action = env.spec.action if choices is None else _discrete(choices.num)
        self.spec = replace(env.spec, obs=shown, action=action, frames=1, reward_fn=None)
        if hasattr(env, "get_state") and hasattr(env, "set_state"):
            self.get_state, self.set_state = env.get_state, env.set_state

    def reset(self, seed: int) -> Any:
        return self._read(self.env.reset(seed))

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, *rest = self.env.step(action if self._choices is None else self._choices.action(action))
        return self._read(obs), *rest

    def close(self) -> None:
        self.env.close()

    def _row_and_mask(self, obs: Any) -> dict[str, Any]:
        mask = self._rows.mask(obs)
        return {"obs": self._rows.index(obs), MASK: mask if self._choices is None else self._choices.legal(mask)}


class VectorStep(NamedTuple):
    """What N copies answer. Where an episode ended, ``rows`` is already the first of the next one."""

    rows: np.ndarray  # int64 [N]: what the copies show now: what to act on
    rewards: np.ndarray  # float64 [N]
    terminated: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]
    final: np.ndarray  # int64 [N]: the true successor, before any reset: what to learn from; else the same as ``rows``


def vectorise(make_fn: Callable[[], HostEnv], num: int) -> Vector:
    """``num`` copies of the environment that ``make_fn`` makes, stepped together; see ``Vector``."""
    if isinstance(num, bool) or not isinstance(num, int) or num < 1:
        raise ConfigError(f"num = {num!r}: expected a whole number of at least 1")
    return Vector([make_fn() for _ in range(num)])


class Vector:
    """N copies of one environment, stepped together: rows and choices of a table in, rows out.

    A copy whose episode ends is reset within the same step. Episode e of copy i is seeded by (seed, i, e) and nothing else, so
    that a copy does the same beside any number of others. ``masks``, bool [N, A], is what may be done now, or None.
    """

    def __init__(self, envs: list[HostEnv]):
        spec = envs[0].spec
        _check_single(spec)
        self.envs, self.spec = envs, spec
        self._rows, self._choices = rows_of(spec.obs), actions_of(spec.action)
        _discrete(self._rows.num)  # refuses what int64 cannot number
        self._begun, self._seed, self._episode = False, 0, [0] * len(envs)
        self.masks: np.ndarray | None = None

    def reset(self, seed: int) -> np.ndarray:
        """int64 [N]: the first rows of the first episodes."""
        self._begun, self._seed, self._episode = True, seed, [0] * len(self.envs)
        return np.array([self._begin(i) for i in range(len(self.envs))], np.int64)

    def step(self, actions: Any) -> VectorStep:
        """``actions`` int [N]: a choice for each copy."""
        if not self._begun:
            raise ConfigError("step before reset: call reset(seed) first")
        num = len(self.envs)
        if len(actions) != num:
            raise ConfigError(f"{len(actions)} actions for {num} environments: expected one for each")
        rows, final, rewards = np.empty(num, np.int64), np.empty(num, np.int64), np.empty(num, np.float64)
        terminated, truncated = np.empty(num, bool), np.empty(num, bool)
        for i, env in enumerate(self.envs):
            obs, rewards[i], terminated[i], truncated[i], _ = env.step(self._choices.action(int(actions[i])))
            rows[i] = final[i] = self._rows.index(obs)
            self._keep_mask(i, obs)
            if terminated[i] or truncated[i]:
                self._episode[i] += 1
                rows[i] = self._begin(i)
        return VectorStep(rows, rewards, terminated, truncated, final)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, i: int) -> int:
        from shoal import rng

        obs = self.envs[i].reset(rng.host_seed(self._seed, rng.Stream.ENV, i, self._episode[i]))
        self._keep_mask(i, obs)
        return self._rows.index(obs)

    def _keep_mask(self, i: int, obs: Any) -> None:
        mask = self._rows.mask(obs)
        if mask is None:
            return
        if self.masks is None:
            self.masks = np.ones((len(self.envs), self._choices.num), bool)
        self.masks[i] = self._choices.legal(mask)


def _discrete(num: int) -> Discrete:
    if num >= MOST_BATCHED:
        raise ConfigError(f"{in_words(num)} rows are more than one Discrete can number: give fewer --bins, or learn with --sparse")
    return Discrete(num, "int32" if num < 2**31 else "int64")


def _check_single(spec: EnvSpec) -> None:
    if spec.num_agents:
        raise ConfigError(f"env {spec.name!r} has {spec.num_agents} agents: expected one")
