"""A run ends at the first iteration boundary at or after its budget, whichever it is counted in."""

from __future__ import annotations

from itertools import accumulate

import pytest

from shoal import Callback
from shoal.errors import ConfigError

PER_ITERATION = 64
KINDS = pytest.mark.parametrize(("env", "path"), [("cartpole", "fused"), ("cartpole", "ported"), ("CartPole-v1", "auto")],
                                ids=["fused", "ported", "gymnasium"])


class Counter(Callback):
    """Counts episodes one by one, as they end."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.per_iteration: list[int] = []

    def on_episode_end(self, loop, episode):
        self.ended.append(loop.iteration)

    def on_iteration_end(self, loop, iteration, result):
        self.per_iteration.append(result.episodes)


@KINDS
def test_steps(run, env, path):
    for steps, expected in ((1, 64), (192, 192), (193, 256)):
        done = run(env, path=path, steps=steps)
        assert (done.result["steps"], done.result["updates"], done.result["stopped_by"]) == (expected, expected // 64, "steps")
        assert done.rows()[-1]["step"] == expected


@KINDS
def test_episodes(run, env, path):
    counter = Counter()
    run(env, path=path, steps=1600, callbacks=(counter,))
    totals = list(accumulate(counter.per_iteration))
    assert [counter.ended.count(i + 1) for i in range(25)] == counter.per_iteration  # one by one, and as sums
    for episodes in (1, totals[9], totals[9] + 1):
        first = next(i for i, total in enumerate(totals) if total >= episodes)
        done = run(env, path=path, episodes=episodes)
        assert done.result["steps"] == (first + 1) * PER_ITERATION
        assert (done.result["episodes"], done.result["stopped_by"]) == (totals[first], "episodes")


@KINDS
def test_minutes(run, env, path):
    done = run(env, path=path, minutes=1e-5)
    assert done.result["stopped_by"] == "minutes"
    assert done.result["steps"] in (0, PER_ITERATION, 2 * PER_ITERATION)  # over before the first call of the engine came back


@KINDS
def test_target_by_training(run, env, path):
    done = run(env, path=path, steps=64_000, target_return=21.0)
    assert done.result["stopped_by"] == "target"
    *before, last = done.rows()
    assert last["episodes"] >= 100 and last["mean_return"] >= 21.0 and last["step"] == done.result["steps"]
    assert all(row["episodes"] < 100 or row["mean_return"] < 21.0 for row in before)
    assert before[-1]["episodes"] >= 95  # it was not for want of episodes that it went on so long, nor did it wait


def test_target_and_patience_by_evaluation(run):
    scores = run(steps=1600, eval_every=128).evaluations()
    steps = [step for step, _ in scores]
    assert steps == [*range(128, 1600, 128), 1600]
    regular = scores[:-1]
    target = sorted(score for _, score in regular)[-2]  # not the first, so that there is something to wait for
    first = next(step for step, score in regular if score >= target)
    done = run(steps=1600, eval_every=128, target_return=target)
    assert (done.result["steps"], done.result["stopped_by"]) == (first, "target")
    assert done.evaluations() == [pair for pair in scores if pair[0] <= first]

    def stop(patience: int) -> int:
        best, misses = float("-inf"), 0
        for step, score in regular:
            best, misses = (score, 0) if score > best else (best, misses + 1)
            if misses >= patience:
                return step
        return 1600

    for patience in (1, 3):
        done = run(steps=1600, eval_every=128, patience=patience)
        assert done.result["steps"] == stop(patience), scores
        assert done.result["stopped_by"] == ("patience" if stop(patience) < 1600 else "steps")
    assert stop(1) < stop(3)


def test_evaluations_fall_on_the_first_boundary_at_or_after(run):
    done = run(steps=640, eval_every=150)
    assert [step for step, _ in done.evaluations()] == [192, 320, 512, 640]  # 150, 300, 450, 600


def test_a_second_run_goes_on(run):
    whole = run(steps=640)
    half = run(steps=320)
    again = half.loop.run(steps=640)
    assert again["params_sha256"] == whole.sha and again["steps"] == 640
    assert half.sha != whole.sha


def test_a_finished_run_resumes_to_itself(run):
    import shoal

    done = run(steps=320, eval_every=128)
    before = {name: (done.folder / name).read_bytes() for name in ("metrics.jsonl", "metrics.csv", "config.toml")}
    again = shoal.resume(done.folder).result
    for name in ("params_sha256", "steps", "episodes", "updates", "eval_return", "mean_return", "stopped_by"):
        assert again[name] == done.result[name], name
    assert {name: (done.folder / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(("reason", "stop"), [("target", {"target_return": 5.0}), ("patience", {"patience": 1})])
def test_a_run_ended_by_a_score_does_not_go_on(run, reason, stop):
    """As after a kill between the last save and the end of the process."""
    import shoal

    done = run(steps=6400, eval_every=128, **stop)
    assert done.result["stopped_by"] == reason and done.result["steps"] < 6400
    before = (done.folder / "metrics.jsonl").read_bytes()
    again = shoal.resume(done.folder).result
    assert (again["steps"], again["stopped_by"], again["params_sha256"]) == (
        done.result["steps"], done.result["stopped_by"], done.sha)
    assert (done.folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(("settings", "text"), [
    ({}, "no budget"), ({"steps": 64, "patience": 2}, "--eval-every"), ({"steps": -1}, "steps = -1"),
    ({"steps": 64, "num_envs": 12, "lane_envs": 8}, "--num-envs 8 or --num-envs 16"), ({"steps": 64, "stepz": 1}, "'steps'"),
])
def test_refused(run, tmp_path, settings, text):
    with pytest.raises(ConfigError, match=text):
        run(**settings)
    assert not list(tmp_path.iterdir())
