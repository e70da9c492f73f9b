"""Prioritised replay beside cpprb: the same operations on both, then the same distribution of draws and the same weights.

``python -m benchmarks.oracle`` makes cpprb's environment where it is not there, compares, and fills ``docs/replay-proofs.md``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from benchmarks import peers, proofs, table

SIZE, ALPHA, EPSILON, BETA = 1_000, 0.6, 1e-6, 0.4
DRAWS, BATCH = 1_000_000, 10  # small: of large batches, which are stratified, even wrong counts would scatter too little
MOST_Z = 4.0  # standard deviations above the mean of chi-square
MOST_DIFFERENCE = 1e-6  # of weights, the largest of which is 1


def stages(seed: int = 0) -> dict[str, list[list[Any]]]:
    """Operations by stage. No row is named twice in one update: there cpprb keeps the last value and shoal the largest."""
    draw = np.random.default_rng(seed)

    def update(held: int, num: int) -> list[Any]:
        rows = draw.choice(held, num, replace=False)
        return ["update", rows.tolist(), np.float32(np.exp(draw.normal(size=num))).tolist()]

    half = SIZE // 2
    # what is new gets the largest priority so far, which the first update gives to both alike
    return {
        "half full": [["add", half], update(half, half), ["add", SIZE // 10]],
        "many updates": [["add", SIZE - half - SIZE // 10], update(SIZE, SIZE), *(update(SIZE, 200) for _ in range(500))],
        "come round three times": [op for _ in range(30) for op in (["add", SIZE // 10], update(SIZE, 64))],
    }


def ours(told: dict[str, Any]) -> list[dict[str, Any]]:
    """What shoal answers to what ``workers.cpprb_oracle`` is told."""
    import jax
    import jax.numpy as jnp

    from shoal.buffers import ring, sum_tree
    from shoal.buffers.prioritised import Prioritised, weights
    from shoal.specs import Box, Discrete, EnvSpec
    from shoal.types import Transition

    size, spec = told["size"], EnvSpec("row", Box(()), Discrete(2))
    buffer = Prioritised(capacity=size, batch_size=told["batch"], start=1, alpha=told["alpha"], beta=told["beta"],
                         beta_updates=float("inf"), epsilon=told["epsilon"])
    one = jnp.ones((1, 1))

    def add(number: int, state: Any) -> Any:
        row = one * (number % size)
        return buffer.add(state, 0, Transition(row, jnp.zeros((1, 1), jnp.int32), one, one, row, one < 0, one, ()))

    @jax.jit
    def draw(state: Any, root: Any) -> Any:
        def batch(key: Any) -> Any:
            sample = buffer.sample(state, key)[1]
            return sample.ticket.row, sample.batch.obs, sample.weight

        held, value = state.index.filled.sum(), state.priority.levels[0][:size]
        every = weights(value, sum_tree.total(state.priority.levels), held, jnp.float32(told["beta"]))
        return every, jax.lax.map(batch, jax.random.split(root, told["draws"] // told["batch"]))

    update = jax.jit(lambda state, row, delta: buffer.update(state, ring.ticket(state.form[0].ring, state.index, row), delta))
    fill = jax.jit(lambda state, begin, end: jax.lax.fori_loop(begin, end, add, state))
    state, added, answers = buffer.init(spec, 1), 0, []
    for number, stage in enumerate(told["stages"]):
        for name, *given in stage:
            if name == "add":
                state, added = fill(state, added, added + given[0]), added + given[0]
            else:
                state = update(state, jnp.asarray(given[0], jnp.int32), jnp.asarray(given[1], jnp.float32))
        every, (row, obs, weight) = jax.device_get(draw(state, jax.random.key(number)))
        np.testing.assert_array_equal(row, obs)  # what is drawn is what was put there
        np.testing.assert_allclose(weight, every[row] / every[row].max(1, keepdims=True), rtol=1e-5)  # the largest of a batch is 1
        answers.append({"counts": np.bincount(row.reshape(-1), minlength=size).tolist(), "weight": every.tolist()})
    return answers


def analytic(told: dict[str, Any]) -> list[np.ndarray]:
    """P(i) = p_i / Σ p after each stage, in float64, by hand."""
    value, largest, added, answers = np.zeros(told["size"]), 1.0, 0, []
    for stage in told["stages"]:
        for name, *given in stage:
            if name == "add":
                value[np.arange(added, added + given[0]) % told["size"]] = largest
                added += given[0]
            else:
                value[given[0]] = (np.asarray(given[1]) + told["epsilon"]) ** told["alpha"]
                largest = max(largest, value[given[0]].max())
        answers.append(value / value.sum())
    return answers


def theirs(told: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run([str(peers.python("c1")), "-m", "benchmarks.workers.cpprb_oracle"], input=json.dumps(told) + "\n", cwd=table.ROOT,
                          capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"cpprb: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def z_of(counts: np.ndarray, probability: np.ndarray) -> float:
    """Pearson's statistic of draws against their distribution, in standard deviations above its mean."""
    held = probability > 0
    if counts[~held].any():
        return float("inf")
    expected = probability[held] * counts.sum()
    degrees = held.sum() - 1
    return float((((counts[held] - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


def z_between(a: np.ndarray, b: np.ndarray) -> float:
    """The same of two samples of one size, against each other."""
    seen = a + b > 0
    degrees = seen.sum() - 1
    return float((((a - b)[seen] ** 2 / (a + b)[seen]).sum() - degrees) / np.sqrt(2 * degrees))


def compare(told: dict[str, Any], us: list[dict[str, Any]], them: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Stage by stage: z of both against the exact distribution and against each other, and the largest difference of weights."""
    answers = []
    for exact, mine, other in zip(analytic(told), us, them, strict=True):
        a, b = (np.asarray(side["counts"]) for side in (mine, other))
        formula = np.where(exact > 0, ((exact > 0).sum() * np.where(exact > 0, exact, 1.0)) ** -told["beta"], 0.0)
        weight, drawn = np.asarray(mine["weight"]), b > 0
        answers.append({"ours": z_of(a, exact), "theirs": z_of(b, exact), "between": z_between(a, b),
                        "weights": float(np.abs(weight - np.asarray(other["weight"]))[drawn].max()),
                        "formula": float(np.abs(weight - formula / formula.max()).max())})
    return answers


def main() -> int:
    plan = stages()
    told = {"size": SIZE, "alpha": ALPHA, "epsilon": EPSILON, "beta": BETA, "batch": BATCH, "draws": DRAWS, "stages": list(plan.values())}
    answer = theirs(told)
    good = True
    for name, seen in zip(plan, compare(told, ours(told), answer["stages"]), strict=True):
        met = max(seen["ours"], seen["between"]) < MOST_Z and max(seen["weights"], seen["formula"]) < MOST_DIFFERENCE
        text = (f"z {seen['ours']:.1f} (cpprb {seen['theirs']:.1f}, between the two {seen['between']:.1f}); weights differ by "
                f"{seen['weights']:.1e} from cpprb's and {seen['formula']:.1e} from the formula").replace("-", "−")
        done = f"{answer['versions']}: the same operations on {SIZE:,} rows, then {DRAWS:,} draws of each"
        expected = f"z < {MOST_Z:.0f}; weights within {MOST_DIFFERENCE:.0e}".replace("-", "−")
        proofs.write(f"cpprb as an oracle: {name}", done, text, expected, met)
        print(f"{name}: {text}: {'met' if met else 'NOT met'}", flush=True)
        good &= met
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
