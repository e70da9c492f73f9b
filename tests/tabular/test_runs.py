"""Runs of tables: stopped and resumed they are the run never stopped; scored, loaded and refused like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drivers import PATIENCE_S, rows, start

import shoal
from shoal import Callback, cli, envs, store
from shoal.errors import ReplayError, StoreError
from shoal.plan import Plan
from shoal.testing import faults

SMALL: dict[str, Any] = {"table": "list", "horizon": 3000.0, "sync_every": 60}
RUNS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "q_learning, a model": (shoal.QLearning, "FrozenLake-v1", {"num_envs": 3}),
    "sarsa, Python": (shoal.Sarsa, "Taxi-v4", {"num_envs": 2, "path": "ported", "log_every": 24}),
    "sarsa, Python, masked": (shoal.Sarsa, "Taxi-v4", {"num_envs": 2, "path": "ported", "env_options": {"info_mask": True}}),
    "q_learning, lanes": (shoal.QLearning, "FrozenLake-v1", {"num_envs": 6, "lane_envs": 1}),
    "q_learning, Python, lanes": (shoal.QLearning, "Blackjack-v1", {"num_envs": 4, "lane_envs": 2, "path": "ported"}),
    "q_learning, a game": (shoal.QLearning, "tictactoe", {"num_envs": 2}),
    "n_step_sarsa, what is remembered": (shoal.NStepSarsa, "CliffWalking-v1", {"num_envs": 3, "max_episode_steps": 70}),
    "q_lambda, what is remembered": (shoal.QLambda, "CliffWalking-v1", {"num_envs": 3, "max_episode_steps": 70}),
    "monte_carlo, what is remembered": (shoal.MonteCarlo, "CliffWalking-v1", {"num_envs": 3, "max_episode_steps": 70}),
    "dyna_q, its model": (shoal.DynaQ, "FrozenLake-v1", {"num_envs": 2, "lane_envs": 1}),
    "double_q_learning, both tables": (shoal.DoubleQLearning, "FrozenLake-v1", {"num_envs": 3}),
}
COUNTERS = ("params_sha256", "steps", "episodes", "updates", "mean_return", "eval_return")


class Stop(Callback):
    """A signal once so many steps are taken: the run saves and leaves, without a score."""

    def __init__(self, at: int):
        self.at = at

    def on_iteration_end(self, loop: Any, iteration: int, result: Any) -> None:
        if loop.step >= self.at:
            signal.raise_signal(signal.SIGTERM)


def train(folder: Path, name: str, **settings: Any) -> shoal.api.Run:
    _, env, own = RUNS[name]
    given = {"steps": 2400, "seed": 9, "eval_every": 600, "eval_episodes": 4, "checkpoint_every": "0", "log_every": 240, "quiet": True}
    return shoal.train(learner(name), env, out=folder, **given | own | settings)


def learner(name: str) -> Any:
    return RUNS[name][0](**SMALL | ({"table": "numpy"} if "game" in name or "lanes" in name else {}))


@pytest.mark.parametrize("name", RUNS)
def test_stopped_twice_and_resumed_is_never_stopped(tmp_path: Path, name: str):
    whole = train(tmp_path / "whole", name)
    stopped = train(tmp_path / "stopped", name, callbacks=(Stop(700),))
    assert stopped.result["stopped_by"] == "SIGTERM" and 700 <= stopped.result["steps"] < 1400
    soon = stopped.result["steps"] + 1  # in the same episode, where iterations are short
    loop = shoal.MainLoop(RUNS[name][1], learner(name), out=stopped.folder, resume=True, quiet=True, callbacks=(Stop(soon),),
                          **settings_of(stopped))
    assert soon <= loop.run()["steps"] < soon + 700
    resumed = shoal.resume(stopped.folder)
    for field in COUNTERS:
        assert resumed.result[field] == whole.result[field], field
    assert (stopped.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()
    (one, _), (two, _) = store.newest(stopped.folder), store.newest(whole.folder)
    assert store.sha256(one.tensors) == store.sha256(two.tensors)


def settings_of(run: shoal.api.Run) -> dict[str, Any]:
    names = ("steps", "seed", "eval_every", "eval_episodes", "checkpoint_every", "log_every", "num_envs", "lane_envs", "path",
             "env_options", "max_episode_steps")
    return {name: getattr(run._loop.plan, name) for name in names}


def test_compiled_runs_resume_too(tmp_path: Path):
    """And come to what lists come to."""
    pytest.importorskip("numba")
    plain = train(tmp_path / "plain", "q_learning, a model", num_envs=1)
    stopped = shoal.train(shoal.QLearning(**SMALL | {"table": "compiled"}), "FrozenLake-v1", out=tmp_path / "stopped", steps=2400, seed=9,
                          eval_every=600, eval_episodes=4, log_every=240, num_envs=1, quiet=True, callbacks=(Stop(700),))
    assert stopped.result["steps"] < 1400
    assert shoal.resume(stopped.folder).result["params_sha256"] == plain.result["params_sha256"]
    assert (stopped.folder / "metrics.jsonl").read_bytes() == (plain.folder / "metrics.jsonl").read_bytes()


def test_one_environment_in_python_is_held_to_its_limit(tmp_path: Path):
    """Where a lane of one counts steps itself, however it is cut into laps and wherever it is stopped; as the plain loop does."""
    pytest.importorskip("numba")
    given: dict[str, Any] = {"num_envs": 1, "lane_envs": 1, "path": "ported", "max_episode_steps": 7, "steps": 2402, "eval_every": 601}
    plain = train(tmp_path / "plain", "sarsa, Python", **given, env_options={})
    quick = [shoal.train(shoal.Sarsa(**SMALL | {"table": "compiled"}), "Taxi-v4", out=tmp_path / str(stop), seed=9, eval_episodes=4,
                         checkpoint_every="0", log_every=24, quiet=True, callbacks=(Stop(stop),), **given) for stop in (99_999, 723)]
    assert quick[1].result["steps"] < 2402 and quick[1].result["steps"] % 7  # in an episode
    quick[1] = shoal.resume(quick[1].folder)
    assert plain.result["episodes"] == 2402 // 7  # nobody delivers a passenger in seven steps by chance so early
    for run in quick:
        assert (run.folder / "metrics.jsonl").read_bytes() == (plain.folder / "metrics.jsonl").read_bytes()
        assert run.result["params_sha256"] == plain.result["params_sha256"]


@pytest.mark.parametrize("name", ["q_learning, lanes", "sarsa, Python"])
def test_how_often_it_is_saved_and_told_of_changes_no_bit(tmp_path: Path, name: str):
    """Nor whether somebody listens to single episodes."""

    class Listener(Callback):
        def __init__(self) -> None:
            self.ended: list[Any] = []

        def on_episode_end(self, loop: Any, episode: Any) -> None:
            self.ended.append(episode)

    whole, listener = train(tmp_path / "whole", name), Listener()
    for number, own in enumerate(({"checkpoint_every": "300", "eval_every": 130}, {"log_every": 777, "callbacks": (listener,)})):
        run = train(tmp_path / str(number), name, **own)
        for field in COUNTERS:
            assert run.result[field] == whole.result[field], (field, own)
    assert len(listener.ended) == whole.result["episodes"] > 10
    numbers = [(episode.env, episode.length) for episode in listener.ended]
    assert {env for env, _ in numbers} == set(range(RUNS[name][2]["num_envs"])) and sum(length for _, length in numbers) <= 2400


# killed --------------------------------------------------------------------------------------------------------------

FLAGS = ["--preset", "none", "--horizon", "200000", "--seed", "4", "--eval-episodes", "5", "--json", "--quiet"]


@pytest.mark.parametrize("lane_envs", [4, 2])
def test_a_driver_that_is_killed(tmp_path: Path, lane_envs: int):
    """In the middle of training, long after the last save."""
    args = ["q_learning", "FrozenLake-v1", "--table", "list", "--num-envs", "4", "--lane-envs", str(lane_envs), "--steps", "40000",
            "--sync-every", "50", "--log-every", "400", "--checkpoint-every", "4000", *FLAGS]
    process = start(tmp_path, "train", *args, "--out", "killed", **{faults.VARIABLE: "driver:ask:78:kill"})
    process.communicate(timeout=PATIENCE_S)
    folder = tmp_path / "killed"
    assert process.returncode == -signal.SIGKILL and 70 <= rows(folder) < 78 and store.newest(folder)[0].step == 28_000
    out, _ = start(tmp_path, "resume", "killed", "--json", "--quiet").communicate(timeout=PATIENCE_S)
    result = json.loads(out.splitlines()[-1])
    whole = shoal.train(shoal.QLearning(table="list", horizon=2e5, sync_every=50), "FrozenLake-v1", num_envs=4, lane_envs=lane_envs,
                        steps=40_000, log_every=400, seed=4, eval_episodes=5, out=tmp_path / "whole", quiet=True)
    for field in COUNTERS:
        assert result[field] == whole.result[field], field
    assert (folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()


# scores --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cliff(tmp_path_factory: pytest.TempPathFactory) -> shoal.api.Run:
    """A run that has found the shortest way along the cliff, and still explores a tenth of the time."""
    learner = shoal.QLearning(table="numpy", learning_rate=0.5, epsilon_start=0.5, epsilon_end=0.1)
    folder = tmp_path_factory.mktemp("cliff") / "run"
    return shoal.train(learner, "CliffWalking-v1", steps=40_000, num_envs=8, seed=1, quiet=True, out=folder)


def numbers(scores: dict[str, float]) -> dict[str, float]:
    """All but the share of successes, of which these environments know nothing."""
    assert np.isnan(scores["success_rate"])
    return {name: x for name, x in scores.items() if name != "success_rate"}


def test_a_score_is_that_of_the_best_actions(cliff: shoal.api.Run):
    assert cliff.result["eval_return"] == -13.0
    scores = numbers(shoal.evaluate(cliff.folder, episodes=20))
    assert scores == numbers(cliff.evaluate(20)) and (scores["mean_return"], scores["std_return"], scores["episodes"]) == (-13.0, 0.0, 20)


def test_a_sampled_score_explores_and_follows_its_seed(cliff: shoal.api.Run):
    """One step in ten is random, beside a cliff."""
    sampled = numbers(shoal.evaluate(cliff.folder, episodes=50, sampled=True))
    assert sampled["mean_return"] < -20.0 and sampled == numbers(cliff.evaluate(50, sampled=True))
    assert sampled != numbers(shoal.evaluate(cliff.folder, episodes=50, sampled=True, seed=2))


def test_a_loaded_policy_acts(cliff: shoal.api.Run):
    policy, env, obs, total = shoal.load(cliff.folder), envs.from_plan(Plan(env="CliffWalking-v1")), 36, 0.0
    env.reset(0)
    for _ in range(13):
        obs, reward, terminated, _, _ = env.step(policy.act(obs))
        total += reward
    assert terminated and total == -13.0


def test_the_command_line_scores(cliff: shoal.api.Run, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["eval", str(cliff.folder), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mean_return"] == -13.0


def test_masked_actions_are_not_taken_in_a_score(tmp_path: Path):
    """What may not be done was never tried, and so looks better than all that costs something."""
    for path in ("auto", "ported"):
        run = train(tmp_path / path, "sarsa, Python, masked", path=path, steps=2000, eval_every=0)
        assert run.evaluate(5)["min_return"] >= -200.0, path  # at worst 200 steps, none of which is fined 10 for being illegal


def test_scores_in_a_game_are_against_chance(tmp_path: Path):
    run = train(tmp_path / "run", "q_learning, a game")
    scores = numbers(run.evaluate(40))
    assert scores["min_return"] >= -1.0 and scores["max_return"] == 1.0 and scores == numbers(shoal.evaluate(run.folder, 40))


# refused -------------------------------------------------------------------------------------------------------------

Q = ("q_learning", "FrozenLake-v1")
BOUNDS = ("--low=-3,-3,-3,-3", "--high=3,3,3,3")
BAD: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    ((*Q, "--table", "numpi"), ("table = 'numpi'", "'numpy'")),
    ((*Q, "--exploration", "greedy"), ("exploration = 'greedy'", "epsilon, boltzmann, ucb")),
    (("expected_sarsa", "FrozenLake-v1", "--exploration", "ucb"), ("exploration = 'ucb'", "epsilon, boltzmann")),
    ((*Q, "--epsilon-schedule", "exponential", "--epsilon-end", "0"), ("epsilon_end = 0.0", "exponential")),
    ((*Q, "--discount", "1.5"), ("discount = 1.5", "from 0 to 1")),
    ((*Q, "--clip-range", "0.2"), ("unknown flag --clip-range",)),
    ((*Q, "--hidden", "64"), ("unknown flag --hidden",)),
    ((*Q, "--trace-decay", "0.5"), ("unknown flag --trace-decay",)),
    ((*Q, "--num-envs", "8", "--lane-envs", "3"), ("num_envs = 8", "lane_envs = 3", "--num-envs 6 or --num-envs 9")),
    ((*Q, "--mode", "async"), ("async", "--runtime processes")),
    (("q_learning", "CartPole-v1"), ("Box", "--bins", "--low and --high")),
    (("q_learning", "CartPole-v1", "--bins", "10"), ("no bounds", "--low and --high")),
    (("q_learning", "CartPole-v1", *BOUNDS), ("bins = 0", "--bins")),
    (("q_learning", "CartPole-v1", *BOUNDS, "--bins", "100000"), ("10^20 rows", "TiB", "fewer --bins")),
    (("q_learning", "Pendulum-v1", "--bins", "9"), ("actions are Box", "sac")),
    (("q_learning", "cartpole"), ("'cartpole' is compiled", "no model")),
    (("q_learning", "CartPole-v1", "--path", "fused"), ("path = 'fused'", "--path ported")),
    (("ppo", "tictactoe"), ("tictactoe", "tables")),
]


@pytest.mark.parametrize(("args", "texts"), BAD, ids=[" ".join(args) for args, _ in BAD])
def test_refused_in_one_line(args: tuple[str, ...], texts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = cli.main(["train", *args, "--steps", "100", "--quiet", "--out", str(tmp_path / "run")])
    err = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and len(err) == 1 and err[0].startswith("shoal: error: "), err
    assert all(text in err[0] for text in texts), err[0]
    assert not (tmp_path / "run").exists()


def test_one_bound_does_for_all_numbers(tmp_path: Path):
    """As the refusal of another number of bounds says."""
    own = {"table": "numpy", "bins": 4, "horizon": 1000.0}
    shas = {shoal.train(shoal.QLearning(low=(-3.0,) * num, high=(3.0,) * num, **own), "CartPole-v1", steps=500, num_envs=2, quiet=True,
                        eval_episodes=1, out=tmp_path / str(num)).result["params_sha256"] for num in (4, 1)}
    assert len(shas) == 1


@pytest.mark.parametrize("wrong", [{"q": np.zeros(3)}, {"q": np.zeros(1)}, {"n": np.zeros(1, np.int64)}, {"q": np.zeros(64, np.float32)},
                                   {"lane0.ints": np.zeros(5, np.int64)}, {"lane0.more": np.zeros(1)}],
                         ids=["another shape", "one value for all", "one counter for all", "fewer digits", "a lane", "what nobody knows"])
def test_a_checkpoint_of_another_table_is_refused(tmp_path: Path, wrong: dict[str, np.ndarray]):
    """Its sums are right: it is what somebody saved, only not this run."""
    run = train(tmp_path / "run", "q_learning, a model", steps=300)
    point, _ = store.newest(run.folder)
    counters = point.meta["counters"] | {"step": 400}
    store.save(run.folder, 400, dict(point.tensors), point.meta | {"counters": counters}, dict(point.lengths))
    assert shoal.resume(run.folder, steps=100).result["steps"] == 500  # so it is not for being written here that another is refused
    store.save(run.folder, 600, dict(point.tensors) | wrong, point.meta | {"counters": counters | {"step": 600}}, dict(point.lengths))
    with pytest.raises((StoreError, ReplayError)):
        shoal.resume(run.folder, steps=100)


@pytest.mark.slow
def test_kept_code_that_is_torn_is_compiled_again(tmp_path):
    pytest.importorskip("numba")
    command = [sys.executable, "-c", "import shoal, sys; print(shoal.train(shoal.QLearning(table='compiled'), 'FrozenLake-v1', steps=400, "
               "num_envs=1, eval_episodes=1, out=sys.argv[1]).result['params_sha256'])"]
    env = os.environ | {"SHOAL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(Path(shoal.__file__).parents[1])}

    def train(name: str) -> str:
        return subprocess.run([*command, str(tmp_path / name)], env=env, check=True, capture_output=True, text=True).stdout

    first = train("first")
    kept = {path: path.stat().st_size for path in (tmp_path / "cache" / "numba").rglob("*.nb?")}
    assert len(kept) >= 2
    for path in kept:
        path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
    assert train("second") == first
    assert {path: path.stat().st_size for path in kept} == kept  # and kept again
