"""Evaluation: episodes on seeds of their own, in the environment's own reward, with one compiled act of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    return joined([scores for _, scores in play_waves(algorithm, act_fn, make_fn, seed, waves(episodes, size), greedy, size)])


def waves(episodes: int, size: int) -> list[range]:
    """Numbers of the episodes that are played together; each set of them can be played by anyone."""
    return [range(first, min(first + size, episodes)) for first in range(0, episodes, size)]


def joined(parts: list[loops.Scores]) -> loops.Scores:
    return loops.Scores(*(np.concatenate(xs) for xs in zip(*parts, strict=True)))


def play_waves(algorithm: Algorithm, act_fn: Callable[..., Any], make_fn: Callable[[], HostEnv], seed: int, which: list[range],
               greedy: bool, size: int, beat: Any = None) -> Iterator[tuple[range, loops.Scores]]:
    """Play sets of episodes, one after the other; ``beat`` hears of every step."""
    envs = [make_fn() for _ in range(max(len(wave) for wave in which))]
    spec = envs[0].spec
    root, role = rng.root(seed), lane.role(0.0, size, greedy)
    try:
        for wave in which:
            def noise(t: int, first: int = wave.start) -> Tree:
                return _draw(algorithm, rng.key(root, rng.Stream.EVAL_ACT, first, t), spec, size)

            yield wave, _wave(algorithm, act_fn, spec, envs, wave, role, noise, seed, [0] * 3 if beat is None else beat)
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"{spec.name}: {type(error).__name__} during evaluation: {error}") from error
    finally:
        for env in envs:
            env.close()


def _wave(algorithm: Algorithm, act_fn: Callable[..., Any], spec: Any, envs: list[HostEnv], wave: range, role: Any,
          noise_fn: Callable[[int], Tree], seed: int, beat: Any) -> loops.Scores:
    """One episode on each environment; rows of those that are done are acted on and ignored."""
    size, num = role.greedy.shape[0], len(wave)
    returns, lengths, success = np.zeros((num, *spec.agent_shape)), np.zeros(num, np.int64), np.full(num, np.nan)
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
        beat[0] = t
        for i in range(num):
            if not present[i].any():
                continue
            beat[1] = i
            act = action[i].item() if action[i].ndim == 0 else action[i]
            obs[i], reward, term, trunc, info = envs[i].step(act)
            returns[i] += np.where(present[i], reward, 0.0)
            lengths[i] += 1
            present[i] &= ~(np.asarray(term, bool) | np.asarray(trunc, bool))
            if "success" in spec.info:
                success[i] = float(info["success"])
        t += 1
    return loops.Scores(returns, lengths, success)

