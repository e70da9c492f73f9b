"""Killed at random moments and resumed each time, a run ends with the bits of one never stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.testing import chain

SMALL = ["--hidden", "16", "--num-envs", "8", "--num-steps", "32", "--num-epochs", "4", "--num-minibatches", "4",
         "--eval-episodes", "8"]
VARIANTS = {
    "discrete fused (cartpole)": ["ppo", "cartpole", *SMALL, "--steps", "1000000", "--checkpoint-every", "8000"],
    "discrete ported (cartpole)": ["ppo", "cartpole", "--path", "ported", "--lane-envs", "4", *SMALL, "--steps", "300000",
                                   "--checkpoint-every", "3000", "--eval-every", "50000"],
    "continuous fused (pendulum, normalised)": ["ppo", "pendulum", *SMALL, "--normalise-obs", "--normalise-reward",
                                                "--steps", "1000000", "--checkpoint-every", "8000", "--eval-every", "100000"],
    "continuous ported (Pendulum-v1)": ["ppo", "Pendulum-v1", *SMALL, "--steps", "80000", "--checkpoint-every", "1000"],
    "Gymnasium (CartPole-v1, evaluated, to a target)": ["ppo", "CartPole-v1", *SMALL, "--steps", "400000", "--checkpoint-every",
                                                        "1500", "--eval-every", "10000", "--target-return", "500"],
    "team fused (matrix_game, independent)": ["ppo", "matrix_game", "--team", "independent", *SMALL, "--steps", "400000",
                                              "--checkpoint-every", "4000", "--eval-every", "50000"],
}
NET = ["--hidden", "16", "--num-envs", "8", "--eval-episodes", "8"]
LANES = ["--path", "ported", "--lane-envs", "4"]
PLUGIN = ["--plugin", "kill_worlds"]
MEMORY = [*SMALL, "--memory-size", "16"]
BLIND = ["--env-option", "velocities=false"]
IMAGE = [*SMALL, "--channels", "8", "--kernels", "3", "--strides", "2", "--activation", "relu"]
NOISE = [*SMALL, "--state-noise", "--noise-every", "8"]
WHOLE = [*NET, "--num-steps", "128"]
WEIGHTINGS = ("total", "reward_to_go", "baseline")


def every(steps: int) -> list[str]:
    """A budget with about a hundred checkpoints and five evaluations in it."""
    return ["--steps", str(steps), "--checkpoint-every", str(steps // 100), "--eval-every", str(steps // 5)]


FLOOR = {
    "A2C fused (cartpole)": ["a2c", "cartpole", *NET, "--num-steps", "16", *every(1_500_000)],
    "A2C ported (CartPole-v1)": ["a2c", "CartPole-v1", *LANES, *NET, "--num-steps", "16", *every(60_000)],
    **{f"REINFORCE {weighting} fused (cartpole)": ["reinforce", "cartpole", *WHOLE, "--weighting", weighting, *every(1_500_000)]
       for weighting in WEIGHTINGS},
    **{f"REINFORCE {weighting} ported (CartPole-v1)": ["reinforce", "CartPole-v1", *LANES, *WHOLE, "--weighting", weighting,
                                                       *every(60_000)] for weighting in WEIGHTINGS},
    "recurrent PPO fused (cartpole without velocities)": ["recurrent_ppo", "cartpole", *BLIND, *MEMORY, *every(100_000)],
    "recurrent PPO ported (cartpole without velocities)": ["recurrent_ppo", "cartpole", *LANES, *BLIND, *MEMORY, *every(80_000)],
    "recurrent PPO ported (CartPole-v1)": ["recurrent_ppo", "CartPole-v1", *LANES, *MEMORY, *every(40_000)],
    "multi-discrete fused (dials)": ["ppo", "dials", *PLUGIN, *SMALL, *every(1_000_000)],
    "multi-discrete ported (Dials-v0)": ["ppo", "Dials-v0", *PLUGIN, *LANES, *SMALL, *every(50_000)],
    "Bernoulli fused (lights)": ["ppo", "lights", *PLUGIN, *SMALL, *every(1_000_000)],
    "Bernoulli ported (Lights-v0)": ["ppo", "Lights-v0", *PLUGIN, *LANES, *SMALL, *every(50_000)],
    "CNN fused (dot)": ["ppo", "dot", *PLUGIN, *IMAGE, *every(150_000)],
    "CNN ported (Dot-v0)": ["ppo", "Dot-v0", *PLUGIN, *LANES, *IMAGE, *every(40_000)],
    "dropout fused (cartpole)": ["ppo", "cartpole", *SMALL, "--dropout", "0.2", *every(300_000)],
    "dropout ported (CartPole-v1)": ["ppo", "CartPole-v1", *LANES, *SMALL, "--dropout", "0.2", *every(50_000)],
    "gSDE fused (pendulum)": ["ppo", "pendulum", *NOISE, *every(800_000)],
    "gSDE ported (Pendulum-v1)": ["ppo", "Pendulum-v1", *LANES, *NOISE, *every(40_000)],
}
KEPT = [*NET, "--num-steps", "4", "--capacity", "20000", "--start-size", "500", "--batch-size", "32", "--update-every", "8"]
WIDE = [*KEPT, "--hidden", "256,256", "--update-every", "32", "--threads", "2"]  # an update for every chunk of all environments
LINEAR = ["--basis", "plain", *(flag for flag in KEPT if flag not in ("--hidden", "16"))]
REPLAY = {
    "DQN fused (cartpole, prioritised)": ["dqn", "cartpole", *KEPT, "--prioritised", *every(400_000)],
    **{f"DQN ported (CartPole-v1, prioritised, {store})": ["dqn", "CartPole-v1", *LANES, *KEPT, "--prioritised", "--store", store,
                                                           *every(24_000)] for store in ("device", "host", "mapped")},
    "DQN ported (CartPole-v1, prioritised, mapped, 3 shards)": ["dqn", "CartPole-v1", *LANES, *KEPT, "--prioritised", "--store", "mapped",
                                                                "--n-step", "3", "--shards", "3", "--routing", "least_loaded",
                                                                *every(24_000)],
    "QR-DQN fused (cartpole)": ["qr_dqn", "cartpole", *KEPT, *every(400_000)],
    # more rows than there are steps, so that a save takes long enough to be hit
    "QR-DQN ported (CartPole-v1, host)": ["qr_dqn", "CartPole-v1", *LANES, *KEPT, "--capacity", "200000", "--store", "host",
                                          *every(24_000)],
    "linear Q fused (cartpole)": ["linear_q", "cartpole", *LINEAR, *every(400_000)],
    "linear Q ported (CartPole-v1, mapped)": ["linear_q", "CartPole-v1", *LANES, *LINEAR, "--store", "mapped", *every(24_000)],
    **{f"{algo.upper()} fused (pendulum)": [algo, "pendulum", *KEPT, *every(200_000)] for algo in ("sac", "td3", "ddpg")},
    **{f"{algo.upper()} ported (Pendulum-v1, {store})": [algo, "Pendulum-v1", *LANES, *KEPT, "--store", store, *every(20_000)]
       for algo, store in (("sac", "mapped"), ("td3", "host"), ("ddpg", "device"))},
    "SAC ported (Pendulum-v1, device, policy and critics side by side)": ["sac", "Pendulum-v1", *LANES, *WIDE, *every(60_000)],
}

TWO = ["--lane-envs", "4", "--runtime", "processes", "--workers", "2"]
WORKERS = {  # the driver is killed; its workers end by themselves
    "PPO, 2 workers (CartPole-v1, lag 1)": ["ppo", "CartPole-v1", *TWO, *SMALL, "--lag", "1", *every(30_000)],
    "A2C, 2 workers (CartPole-v1)": ["a2c", "CartPole-v1", *TWO, *NET, "--num-steps", "16", *every(24_000)],
    "DQN, 2 workers (CartPole-v1, prioritised, mapped)": ["dqn", "CartPole-v1", *TWO, *KEPT, "--prioritised", "--store", "mapped",
                                                          *every(12_000)],
    "QR-DQN, 2 workers (CartPole-v1, host)": ["qr_dqn", "CartPole-v1", *TWO, *KEPT, "--capacity", "200000", "--store", "host",
                                              *every(12_000)],
    "SAC, 2 workers (Pendulum-v1, device)": ["sac", "Pendulum-v1", *TWO, *KEPT, *every(8_000)],
    "TD3, 2 workers (Pendulum-v1, mapped)": ["td3", "Pendulum-v1", *TWO, *KEPT, "--store", "mapped", *every(8_000)],
}

PLAIN = ["--preset", "none", "--num-envs", "8", "--eval-episodes", "8"]
TABLES = {
    "Q-learning (FrozenLake-v1, its model)": ["q_learning", "FrozenLake-v1", *PLAIN, *every(30_000_000)],
    "Q-learning, 8 lanes (FrozenLake-v1, its model)": ["q_learning", "FrozenLake-v1", *PLAIN, "--lane-envs", "1", *every(20_000_000)],
    "Dyna-Q (FrozenLake8x8-v1, its model)": ["dyna_q", "FrozenLake8x8-v1", *PLAIN, *every(1_000_000)],
    "double Q-learning (tictactoe)": ["double_q_learning", "tictactoe", *PLAIN, *every(10_000_000)],
    "SARSA(λ) ported (Taxi-v4)": ["sarsa_lambda", "Taxi-v4", "--path", "ported", *PLAIN, *every(400_000)],
    "Q-learning, 2 workers (FrozenLake-v1, merged)": ["q_learning", "FrozenLake-v1", *PLAIN, "--runtime", "processes", "--workers", "2",
                                                      *every(20_000_000)],
}


def hold(name: str, args: list[str], kills: int, seed: int, folder: Path, cold_end: bool = True) -> chain.Outcome:
    outcome = chain.chain([*args, "--seed", str(seed)], kills, seed, folder, cold_end=cold_end)
    if name and os.environ.get("SHOAL_DOCS"):
        chain.write_row(Path(__file__).parents[2] / "docs" / "chaos.md", name, outcome)
    assert not outcome.differences, f"{outcome.differences}\n{outcome.replay}"
    assert len(outcome.lives) == kills, outcome.replay
    return outcome


@pytest.mark.parametrize(("env", "steps"), [pytest.param("cartpole", "120000", marks=pytest.mark.slow), ("CartPole-v1", "16000")],
                         ids=["fused", "gymnasium"])
def test_three_kills(env: str, steps: str, tmp_path: Path):
    args = ["ppo", env, *SMALL, "--steps", steps, "--checkpoint-every", str(int(steps) // 20),
            "--eval-every", str(int(steps) // 4)]
    outcome = hold("", args, 3, 7, tmp_path, cold_end=False)
    assert outcome.landed()["saving"] >= 1, outcome.replay


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_twenty_kills(name: str, tmp_path: Path):
    kills = 10 if name.startswith("team") else 20
    outcome = hold(name, VARIANTS[name], kills, 1 + list(VARIANTS).index(name), tmp_path)
    landed = outcome.landed()
    assert landed["saving"] >= 1 and landed["before folder"] + landed["compiling"] >= 1, outcome.replay


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FLOOR, *REPLAY])
def test_ten_kills(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))  # where the plugin lies
    outcome = hold(name, (FLOOR | REPLAY)[name], 10, 101 + [*FLOOR, *REPLAY].index(name), tmp_path)
    landed = outcome.landed()
    assert landed["saving"] >= 1 and landed["before folder"] + landed["compiling"] >= 1, outcome.replay


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKERS)
def test_ten_kills_with_workers(name: str, tmp_path: Path):
    outcome = hold(name, WORKERS[name], 10, 201 + list(WORKERS).index(name), tmp_path)
    assert outcome.result["workers"] == 2 and outcome.result["runtime"] == "processes", outcome.replay
    landed = outcome.landed()
    assert landed["running"] >= 1 and landed["before folder"] + landed["compiling"] >= 1, outcome.replay


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_ten_kills_of_tables(name: str, tmp_path: Path):
    outcome = hold(name, TABLES[name], 10, 301 + list(TABLES).index(name), tmp_path)
    landed = outcome.landed()
    assert landed["running"] + landed["saving"] >= 5, outcome.replay


def test_a_plan_of_kills_follows_from_its_seed():
    plan = chain.plan_kills(20, 5)
    assert plan == chain.plan_kills(20, 5) != chain.plan_kills(20, 6)
    assert [kill.by for kill in plan].count("clock") == 4 and plan[0].by == "clock"
    shares = [kill.at for kill in plan if kill.by != "clock"]
    assert shares == sorted(shares) and len(shares) == 16


def test_every_life_is_told_its_plugins(tmp_path: Path):
    """A run folder names the plugins it needs but cannot import them."""
    args = ["ppo", "dials", "--plugin", "no_such_worlds", "--steps", "64", "--plugin", "no_such_agents"]
    assert chain._plugins(args) == ["--plugin", "no_such_worlds", "--plugin", "no_such_agents"]
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "config.toml").touch()
    process = chain._start(args, tmp_path / "killed", None, cache=None)
    process.communicate(timeout=60)
    assert "no_such_worlds" in (tmp_path / "killed.log").read_text()


def test_the_table_keeps_one_row_per_variant(tmp_path: Path):
    path = tmp_path / "chaos.md"
    life = chain.Life(chain.Kill("save", 0.5, 0.5), "saving", 1.0, 10)
    for name, differences in (("b", []), ("a", []), ("b", ["metrics.jsonl differs"])):
        chain.write_row(path, name, chain.Outcome([life], {}, {}, differences, ""))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in path.read_text().splitlines() if line.startswith("| ")]
    assert [row[:8] for row in rows[1:]] == [["a", "1", "2", "0", "0", "0", "1", "yes"],
                                             ["b", "1", "2", "0", "0", "0", "1", "no: metrics.jsonl differs"]]
