"""A worker killed every few seconds: in step nothing changes; without waiting, the run learns as well as one that is left in peace."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import fault_page
import numpy as np
import pytest
from drivers import PATIENCE_S, rows, start, wait_for, workers_of

EVERY_S = 4.0  # more often than the ten that are asked for: runs take half a minute
COMMON = ["train", "ppo", "CartPole-v1", "--runtime", "processes", "--workers", "2", "--checkpoint-every", "0", "--json", "--quiet"]
IN_STEP = [*COMMON, "--preset", "none", "--num-envs", "16", "--lane-envs", "4", "--num-steps", "32", "--num-epochs", "4", "--hidden", "32",
           "--learning-rate", "1e-3", "--steps", "500000", "--eval-episodes", "50"]
WITHOUT_WAITING = [*COMMON, "--preset", "async", "--steps", "300000", "--eval-episodes", "50"]


def train(folder: Path, args: list[str], seed: int, fire: bool) -> tuple[dict, int]:
    """A run's result, and how many of its workers were killed."""
    name, draw, kills = f"{'fire' if fire else 'peace'}{seed}", random.Random(seed), 0
    driver = start(folder, *args, "--seed", str(seed), "--out", name)
    wait_for(driver, lambda: rows(folder / name) >= 1)
    due = time.monotonic() + (3.0 if fire else float("inf"))
    while driver.poll() is None:
        found = workers_of(driver.pid) if time.monotonic() >= due else []
        if found:
            os.kill(draw.choice(found), signal.SIGKILL)
            kills, due = kills + 1, due + EVERY_S
        time.sleep(0.05)
    out, err = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, f"seed {seed}, after {kills} kills: {err}"
    return json.loads(out.splitlines()[-1]), kills


@pytest.mark.slow
def test_in_step_nothing_changes(tmp_path: Path):
    (peace, _), (fire, kills) = train(tmp_path, IN_STEP, 1, False), train(tmp_path, IN_STEP, 1, True)
    assert kills >= 2 and fire["ledger"]["restarts"] >= kills - 1, fire["ledger"]
    assert fire["params_sha256"] == peace["params_sha256"] and fire["eval_return"] == peace["eval_return"]
    fault_page.write("F10", f"SIGKILL of a worker every {EVERY_S:g} s", "actor, in step (PPO, CartPole-v1)", "≥ 95 % of the quiet return",
                     f"the same bits: {fire['eval_return']:.1f} and {peace['eval_return']:.1f}, {kills} kills", 1)


@pytest.mark.slow
def test_without_waiting_it_learns_as_well(tmp_path: Path):
    seeds, returns, kills = range(1, 7), {True: [], False: []}, 0
    for seed in seeds:
        for fire in (False, True):
            result, killed = train(tmp_path, WITHOUT_WAITING, seed, fire)
            ledger = result["ledger"]
            assert ledger["produced"] == sum(ledger[name] for name in ("learned", "in_flight", "dropped", "lost")), f"seed {seed}: {ledger}"
            assert ledger["lost"] <= ledger["restarts"] <= killed, f"seed {seed}: {ledger}"
            returns[fire].append(result["eval_return"])
            kills += killed
    told = {name: ", ".join(f"{x:.1f}" for x in returns[fire]) for name, fire in (("under fire", True), ("in peace", False))}
    text = " and ".join(f"{name} {numbers}" for name, numbers in told.items())
    share = np.mean(returns[True]) / np.mean(returns[False])
    fault_page.write("F10", f"SIGKILL of a worker every {EVERY_S:g} s", "actor, without waiting (PPO, CartPole-v1)",
                     "≥ 95 % of the quiet return", f"{100 * share:.0f} %: {text}; {kills} kills", len(seeds))
    assert kills >= 2 * len(seeds) and share >= 0.95, f"{text}; {kills} kills, seeds {list(seeds)}"
