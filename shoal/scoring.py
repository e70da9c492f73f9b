"""Evaluation: episodes on seeds of their own, in the environment's own reward, with one compiled act of one shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import lane, loops, rng
from shoal.errors import EnvError
from shoal.types import Algorithm, Env, HostEnv, Key, Params, Tree

ENDLESS = 100_000  # steps after which an evaluation episode without a limit of its own is cut

_run = jax.jit(loops.run_evaluator, static_argnums=(5, 6))
_draw = jax.jit(lambda algorithm, key, spec, size: algorithm.draw(spec, key, (size,)), static_argnums=(2, 3))


def evaluate_compiled(algorithm: Algorithm, env: Env, params: Params, root: Key, episodes: int, greedy: bool) -> loops.Scores:
    """Scores of ``episodes`` episodes of a compiled environment."""
    limit = env.spec.max_episode_steps or ENDLESS
    return jax.device_get(_run(algorithm, env, params, root, jnp.float32(greedy), episodes, limit))


def evaluate_host(algorithm: Algorithm, act_fn: Callable[..., Any], make_fn: Callable[[], HostEnv], seed: int,
                  episodes: int, greedy: bool, size: int) -> loops.Scores:
    """Scores of ``episodes`` episodes of a host environment, ``size`` at a time."""
    envs = [make_fn() for _ in range(min(size, episodes))]
    spec = envs[0].spec
    root, role = rng.root(seed), lane.role(0.0, size, greedy)
    returns = np.zeros((episodes, *spec.agent_shape))
    lengths, success = np.zeros(episodes, np.int64), np.full(episodes, np.nan)
    try:
        for first in range(0, episodes, size):
            wave = range(first, min(first + size, episodes))

            def noise(t: int, first: int = first) -> Tree:
                return _draw(algorithm, rng.key(root, rng.Stream.EVAL_ACT, first, t), spec, size)

            _wave(algorithm, act_fn, spec, envs, wave, role, noise, seed, returns, lengths, success)
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"{spec.name}: {type(error).__name__} during evaluation: {error}") from error
    finally:
        for env in envs:
            env.close()
    return loops.Scores(returns, lengths, success)


def _wave(algorithm: Algorithm, act_fn: Callable[..., Any], spec: Any, envs: list[HostEnv], wave: range, role: Any,
          noise_fn: Callable[[int], Tree], seed: int, returns: np.ndarray, lengths: np.ndarray, success: np.ndarray) -> None:
    """One episode on each environment; rows of those that are done are acted on and ignored."""
    size = role.greedy.shape[0]
    obs: list[Any] = [envs[i].reset(rng.host_seed(seed, rng.Stream.EVAL_ENV, episode)) for i, episode in enumerate(wave)]
    obs += [obs[0]] * (size - len(obs))
    memory, t = algorithm.memory(spec, size), 0
    present = np.ones((len(wave), *spec.agent_shape), bool)
    limit, greedy = spec.max_episode_steps or ENDLESS, bool(np.asarray(role.greedy).all())
    while present.any() and t < limit:
        now = jax.tree.map(lambda *rows: np.stack([np.asarray(r) for r in rows]), *obs)
        now = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, now)
        if t == 0 or not greedy:  # noise that is not used need not be drawn anew
            noise = noise_fn(t)
        acted = act_fn(memory, now, role, noise)
        memory, action = acted.memory, np.asarray(acted.action)
        for i, episode in enumerate(wave):
            if not present[i].any():
                continue
            act = action[i].item() if action[i].ndim == 0 else action[i]
            obs[i], reward, term, trunc, info = envs[i].step(act)
            returns[episode] += np.where(present[i], reward, 0.0)
            lengths[episode] += 1
            present[i] &= ~(np.asarray(term, bool) | np.asarray(trunc, bool))
            if "success" in spec.info:
                success[episode] = float(info["success"])
        t += 1

