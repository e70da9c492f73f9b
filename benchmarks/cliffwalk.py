"""How many updates prioritised and uniform replay need on the blind cliffwalk, as its memory grows.

Schaul et al. (2016), section 3 and figures 1 and 2, with the set-up of their appendix B.1: the memory holds each of the 2^n sequences of
actions once, in random order, and a single one of them is paid. Q-learning on a table, or on a table and a constant feature that all
states share, takes one transition at a time from it, until the mean squared error of its values is below 10⁻³. Drawing, learning and
setting priorities are shoal's own, in one compiled loop. The bias of drawing some more often is not taken back (β = 0), as there.
"""

from __future__ import annotations

import functools
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import table

NAME = "cliffwalk"
COLUMNS = ("states", "memory", "values", "uniform", "prioritised", "ratio", "seeds", "target", "met", "commit", "date")
KEYS = ("states", "values")
SIZES = (4, 8, 12, 16)  # the paper's largest is 16
SEEDS = 31  # odd: the median is a run
TARGET = 10.0  # for the ratio where the memory is largest: an order of magnitude
SHARE = 0.9  # of the most that can be gained, where that is less: whatever sees all rows once needs as many updates as there are rows
CLOSE = 1e-3  # mean squared error at which values are learned
LIMIT = 2**30  # updates after which a run has failed
WORDS = """## The blind cliffwalk

Updates until Q-learning has the right values, where a single transition of the whole memory is paid (Schaul et al. 2016, section 3 and
appendix B.1): the median over seeds, the least and the most. Uniform draws all transitions alike, prioritised in proportion to their last
error; new ones have the largest priority, so that it goes through the memory about once. By the paper the gain grows with the memory, to an
order of magnitude. Whatever sees every transition once needs as many updates as there are transitions, so the most that can be gained is
uniform's updates over the size of the memory. The target is 10, or 0.9 of that most where it is less than 10: so it is for linear
values, for which the paper draws a curve and names no number.
"""


class Memory(NamedTuple):
    """All there is to learn from in a cliffwalk, and what should come of it."""

    data: Any  # Transition [M, 1, ...]: whole episodes, one after the other
    states: Any  # every observation, [length, ...]
    truth: Any  # [length, 2]: their values


def spec(length: int, linear: bool) -> Any:
    """The cliffwalk as learned from a table or from features."""
    from shoal.envs.blind_cliffwalk import BlindCliffwalk
    from shoal.specs import Box, Discrete, EnvSpec

    env = BlindCliffwalk(length=length)
    return EnvSpec("blind_cliffwalk", obs=Box((length + 1,), 0.0, 1.0), action=Discrete(2)) if linear else env.spec


def memory(length: int, linear: bool, seed: int) -> Memory:
    """Every sequence of actions, played in the environment until it ends, in an order drawn by ``seed``."""
    import jax
    import numpy as np

    from shoal.envs.blind_cliffwalk import BlindCliffwalk
    from shoal.types import Transition

    env, key = BlindCliffwalk(length=length), jax.random.key(0)  # nothing in it depends on the key
    sequences = np.random.default_rng(seed).permutation(2**length)

    def step(carry: Any, action: Any) -> Any:
        state, going = carry
        after, said = env.step(state, action, key)
        return (after, going & ~said.terminated), (state, action, said, going)

    start = env.reset(key)[0], np.bool_(True)
    play = jax.jit(jax.vmap(lambda actions: jax.lax.scan(step, start, actions)[1]))
    obs, action, said, going = jax.device_get(play((sequences[:, None] >> np.arange(length) & 1).astype(np.int32)))
    obs, action, after, reward, over = (x[going][:, None] for x in (obs, action, said.obs, said.reward, said.terminated))
    features = np.concatenate([np.eye(length), np.ones((length, 1))], 1).astype(np.float32) if linear else np.arange(length, dtype=np.int32)
    data = Transition(features[obs], action, reward, 1.0 - over.astype(np.float32), features[after], over, np.ones_like(reward), ())
    truth = np.zeros((length, 2), np.float32)
    truth[np.arange(length), np.arange(length) % 2] = _discount(length) ** np.arange(length - 1, -1, -1)
    return Memory(data, features, truth)


def _discount(length: int) -> float:
    return 1.0 - 1.0 / length


def learner(length: int, prioritised: bool) -> Any:
    """Q-learning as in the paper, one transition at a time."""
    from shoal.algos.linear_q import LinearQ

    size = 2 ** (length + 1) - 2
    return LinearQ(basis="plain", num_steps=size, capacity=size, start_size=size, batch_size=1, learning_rate=0.25,
                   discount=_discount(length), prioritised=prioritised, priority_alpha=1.0, priority_beta=0.0)


@functools.cache
def _compiled() -> Any:
    import equinox as eqx
    import jax

    from shoal.types import Batch

    def learn(agent: Any, spec: Any, memory: Memory, key: Any) -> Any:
        buffer = agent.buffer(spec)
        held = buffer.add(buffer.init(spec, 1, num_steps=agent.num_steps), None, memory.data)
        near, draws = jax.random.split(key)
        state = agent.init(spec, near)
        state = eqx.tree_at(lambda s: s.table.weights, state, 0.1 * jax.random.normal(near, state.table.weights.shape))

        def wrong(carry: Any) -> Any:
            state, _ = carry
            error = agent.values(state.table, memory.states) - memory.truth
            return ((error**2).mean() >= CLOSE) & (state.updates < LIMIT)

        def step(carry: Any) -> Any:
            state, held = carry
            held, drawn = buffer.sample(held, jax.random.fold_in(draws, state.updates))
            after = agent.update(state, Batch(drawn.batch, (), (), 1.0, drawn.weight), draws)
            return after.state, held if after.priorities is None else buffer.update(held, drawn.ticket, after.priorities)

        return jax.lax.while_loop(wrong, step, (state, held))[0].updates

    return jax.jit(learn, static_argnums=1)


def updates(length: int, linear: bool, prioritised: bool, seed: int) -> int:
    """How many updates one run takes until its values are right."""
    import jax

    return int(_compiled()(learner(length, prioritised), spec(length, linear), memory(length, linear, seed), jax.random.key(seed)))


def row(length: int, linear: bool, uniform: list[int], prioritised: list[int]) -> dict[str, str]:
    """A row of the page from the updates of all seeds."""
    def text(counts: list[int]) -> str:
        return f"{statistics.median(counts):,.0f} ({min(counts):,} … {max(counts):,})"

    ratio, held, size = statistics.median(uniform) / statistics.median(prioritised), length == SIZES[-1], 2 ** (length + 1) - 2
    target = min(TARGET, SHARE * statistics.median(uniform) / size)
    met = ratio >= target and max(uniform + prioritised) < LIMIT
    return {
        "states": str(length), "memory": f"{size:,}", "values": "linear" if linear else "table",
        "uniform": text(uniform), "prioritised": text(prioritised), "ratio": f"{ratio:.1f}", "seeds": str(len(uniform)),
        "target": f"≥ {target:.3g}" if held else "–", "met": ("yes" if met else "no") if held else "–",
        "commit": table.commit(), "date": table.today(),
    }


def study(page: Path, start: str, num_seeds: int, first_seed: int) -> bool:
    """Measure, print as it goes, and write the page; whether the gain is as large as it should be, and largest where the memory is."""
    good, seeds = True, range(first_seed, first_seed + (num_seeds or SEEDS))
    for linear in (False, True):
        ratios = []
        for length in SIZES:
            counts = [[updates(length, linear, prioritised, seed) for seed in seeds] for prioritised in (False, True)]
            new = row(length, linear, *counts)
            table.update(page, start, [new], COLUMNS, KEYS, WORDS)
            ratios.append(float(new["ratio"]))
            good &= new["met"] != "no"
            print(f"{NAME}, {length} states, {new['values']}: uniform {new['uniform']}, prioritised {new['prioritised']} updates, "
                  f"ratio {new['ratio']}, target {new['target']}: {new['met']}", flush=True)
        if ratios[-1] < max(ratios):
            print(f"{NAME}, {new['values']}: the ratio is not largest where the memory is", flush=True)
            good = False
    return good
