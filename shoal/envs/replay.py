"""How a host environment is brought back to where it stood, without pickle: from its state, or by replaying the episode.

Each episode is seeded by its address, so ``reset(seed)`` and the actions since are enough, if the environment keeps its side:
that is tried on fresh copies before a run relies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from shoal.errors import ReplayError
from shoal.specs import Discrete, EnvSpec, Group, MultiBinary, MultiDiscrete, Space
from shoal.types import HostEnv, Tree

NUM_TRIED = 200  # actions per trial; what BipedalWalker-v3 carries across a reset shows after 54


def replay_mode(make_fn: Callable[[], HostEnv], seed: int) -> str:
    """How copies made by ``make_fn`` can be brought back.

    ``state``: by their own ``get_state`` and ``set_state``. ``reset``: any copy, by ``reset(seed)`` and the actions since.
    ``fresh``: only a new copy, because something outlives a reset. ``inexact``: not at all.
    """
    with closing(make_fn()) as used:
        if has_state(used):
            return "state"
        draw = np.random.default_rng(seed)
        first, second, *others = (int(s) for s in draw.integers(0, 2**31, 2 + NUM_TRIED))
        actions = [random_action(used.spec, draw) for _ in range(2 * NUM_TRIED)]
        used.reset(first)
        for action, other in zip(actions[NUM_TRIED:], others, strict=True):
            _, _, terminated, truncated, _ = used.step(action)
            if _over(terminated, truncated):
                used.reset(other)
        after_use = _trace(used, second, actions[:NUM_TRIED])
    with closing(make_fn()) as new:
        from_new = _trace(new, second, actions[:NUM_TRIED])
    if from_new == after_use:
        return "reset"
    with closing(make_fn()) as again:
        return "fresh" if _trace(again, second, actions[:NUM_TRIED]) == from_new else "inexact"


def has_state(env: HostEnv) -> bool:
    """Whether it says where it stands, and can be told."""
    return hasattr(env, "get_state") and hasattr(env, "set_state")


def replay(env: HostEnv, seed: int, actions: Sequence[Any] | np.ndarray) -> Tree:
    """Bring ``env`` to where ``reset(seed)`` and ``actions`` lead; the observation it then shows."""
    obs = env.reset(seed)
    for index, action in enumerate(actions):
        obs, _, terminated, truncated, _ = env.step(action)
        if _over(terminated, truncated) and index + 1 < len(actions):
            raise ReplayError(f"replay of {env.spec.name!r} ended after {index + 1} of {len(actions)} actions: "
                              "it does not repeat itself from reset(seed)")
    return obs


def _over(terminated: Any, truncated: Any) -> bool:
    return bool(np.all(np.logical_or(terminated, truncated)))


def random_action(spec: EnvSpec, draw: np.random.Generator) -> Any:
    if isinstance(spec.action, Discrete):
        action = draw.integers(0, spec.action.num, spec.agent_shape)
        return action.astype(np.int32) if spec.num_agents else int(action)
    if isinstance(spec.action, MultiDiscrete | MultiBinary):
        nums = spec.action.nums if isinstance(spec.action, MultiDiscrete) else (2,) * spec.action.num
        return draw.integers(0, nums, spec.agent_shape + spec.action.shape).astype(np.int32)
    low, high = (np.clip(bound, -1e3, 1e3) for bound in spec.action.bounds())
    return draw.uniform(low, high, spec.agent_shape + spec.action.shape).astype(np.float32)


def _trace(env: HostEnv, seed: int, actions: list[Any]) -> list[bytes]:
    """All that the environment answers, as bytes, up to the end of the episode."""
    seen = [_bytes(env.spec.obs, env.reset(seed))]
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append(_bytes(env.spec.obs, obs) + b"".join(np.asarray(x).tobytes() for x in (reward, terminated, truncated)))
        if _over(terminated, truncated):
            break
    return seen


def _bytes(space: Space, obs: Tree) -> bytes:
    if isinstance(space, Group):
        return b"".join(_bytes(inner, obs[name]) for name, inner in space.items)
    return np.asarray(obs).tobytes()
