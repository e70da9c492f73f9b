"""What is not a number, or of another shape or type, reaches no published parameters: the run stops naming it, or the update is refused."""

from __future__ import annotations

import collections
import json
import random
from functools import lru_cache
from pathlib import Path

import bad_worlds
import fault_page
import jax
import numpy as np
import pytest

import shoal
from shoal import registry, rng
from shoal.errors import DivergedError, EnvError
from shoal.main_loop import MainLoop
from shoal.params import deltas
from shoal.runtime.lanes import open_world
from shoal.runtime.ported import Ported
from shoal.runtime.serving import pushed_like

CASES, STEPS = 200, 640
SMALL = {"num_steps": 16, "hidden": (8,)}
AGENTS = {"ppo": SMALL | {"num_minibatches": 2, "num_epochs": 2}, "a2c": SMALL, "impala": SMALL,
          "dqn": {"num_steps": 4, "hidden": (8,), "start_size": 64, "batch_size": 16, "capacity": 2000}}
HOST = [f"{bad} {field}" for field in ("reward", "observation") for bad in ("nan", "inf", "-inf", "shape", "dtype")]
COMPILED = ["nan reward", "inf reward", "-inf reward", "nan observation", "inf observation", "huge reward"]  # huge: gradients overflow
PUSHED = ["nan gradient", "inf gradient", "-inf gradient"]


@pytest.fixture
def published(monkeypatch):
    """How many versions were published; each must be finite."""
    counts, publish = collections.Counter(), Ported.publish

    def watched(self, version, params, deadline_s):
        counts["versions"] += 1
        counts["not finite"] += not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(params))
        publish(self, version, params, deadline_s)

    monkeypatch.setattr(Ported, "publish", watched)
    return counts


def train(env, algo: str, runtime, folder: Path) -> tuple[str, int]:
    """How a run ended, and how many of its updates were refused."""
    loop = MainLoop(env, registry.find("algo", algo)(**AGENTS[algo]), runtime=runtime, out=folder, steps=STEPS, num_envs=8,
                    lane_envs=2, seed=1, eval_episodes=2, checkpoint_every="0", path="ported", log_every=1)
    try:
        loop.run()
        ended = "went on"
    except (EnvError, DivergedError) as error:
        ended = f"{type(error).__name__}: {error}"
    finally:
        loop.close()
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    return ended, sum(int(json.loads(line).get("refused") or 0) for line in lines)


def host_case(draw: random.Random, folder: Path, replay: str) -> str:
    kind, algo = draw.choice(HOST), draw.choice(list(AGENTS))
    bad_worlds.Plan.set(kind, draw.randrange(STEPS - 64))
    ended, _ = train("bad_host", algo, draw.choice(["local", shoal.Threads(2)]), folder)
    assert ended.startswith("EnvError") and kind.split()[1] in ended, f"{replay} ({kind}, {algo}, step {bad_worlds.Plan.at}): {ended}"
    return "stopped"


def compiled_case(draw: random.Random, folder: Path, replay: str) -> str:
    kind, algo = draw.choice(COMPILED), draw.choice(list(AGENTS))
    bad, _, field = kind.partition(" ")
    options = {"at": float(draw.randint(1, 8)), "share": draw.uniform(0.05, 1.0)}
    options["obs" if field == "observation" else "reward"] = bad_worlds.BAD[bad]
    ended, refused = train(bad_worlds.BadCompiled(**options), algo, "local", folder)
    assert refused or ended.startswith("DivergedError"), f"{replay} ({kind}, {algo}, {options}): {ended}, none refused"
    return "refused"


@lru_cache
def server(algo: str):
    """A parameter server's algorithm and state, what is pushed to it, and how that is applied."""
    agent = registry.find("algo", algo)(**AGENTS[algo])
    world = open_world(agent, bad_worlds.BadCompiled(), None, seed=0, num_lanes=1, lane_envs=2)
    return agent, agent.init(world.spec, rng.root(0)), pushed_like(world), jax.jit(deltas.apply)


def pushed_case(draw: random.Random, folder: Path, replay: str) -> str:
    """A push to a parameter server that is one number short of being all numbers."""
    kind, algo = draw.choice(PUSHED), draw.choice(["a2c", "ppo"])
    agent, state, like, apply = server(algo)
    fill = np.random.default_rng(draw.randrange(2**31))
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda x: np.asarray(fill.normal(size=x.shape), x.dtype), like))
    whole, metrics = apply(agent, state, jax.tree.unflatten(structure, leaves))
    assert not float(metrics["refused"]), replay
    spoilt = draw.choice([leaf for leaf in leaves if leaf.dtype == np.float32 and leaf.size])
    spoilt[tuple(draw.randrange(n) for n in spoilt.shape)] = bad_worlds.BAD[kind.split()[0]]
    after, metrics = apply(agent, state, jax.tree.unflatten(structure, leaves))
    assert float(metrics["refused"]) == 1.0, f"{replay} ({kind}, {algo})"
    assert all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True)), replay
    return "refused"


@pytest.mark.slow
def test_none_reaches_published_parameters(published, tmp_path: Path):
    found: collections.Counter[str] = collections.Counter()
    for seed in range(CASES):
        case = (host_case, compiled_case, host_case, pushed_case)[seed % 4]
        found[case(random.Random(seed), tmp_path / str(seed), f"seed {seed}")] += 1
        assert not published["not finite"], f"seed {seed}: {published}"
    assert published["versions"] > CASES  # there was something to look at
    text = (f"0 reached, of {published['versions']} versions published; {found['stopped']} stopped naming the field, "
            f"{found['refused']} with updates refused and counted")
    fault_page.write("F11", "NaN, Inf, overflow, wrong shape or dtype", "reward, observation, gradient", "0 reach published parameters",
                     text, CASES)
