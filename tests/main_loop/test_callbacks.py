"""What callbacks see, in which order, and that watching changes nothing."""

from __future__ import annotations

import pytest

from shoal import Callback, store

KINDS = pytest.mark.parametrize(("env", "path"), [("cartpole", "fused"), ("CartPole-v1", "ported")], ids=["fused", "ported"])


class Recorder(Callback):
    """Everything, in order."""

    def __init__(self, stop_at: tuple = ()) -> None:
        self.seen: list[tuple] = []
        self._stop_at = stop_at

    def _saw(self, *event):
        self.seen.append(event)
        return event == self._stop_at

    def on_start(self, loop):
        return self._saw("start", loop.step)

    def on_iteration_start(self, loop, iteration):
        return self._saw("iteration start", iteration)

    def on_iteration_end(self, loop, iteration, result):
        assert loop.iteration == iteration + 1 and loop.step == loop.iteration * 64
        assert result.episodes == len(result.ended) and result.return_sum == sum(e.returns for e in result.ended)
        return self._saw("iteration end", iteration)

    def on_episode_start(self, loop, env):
        return self._saw("episode start", env)

    def on_episode_end(self, loop, episode):
        assert episode.returns == episode.length  # cartpole: 1 per step
        return self._saw("episode end", episode.env, episode.step, episode.length)

    def on_update(self, loop, metrics):
        assert metrics["gradient_steps"] == 4
        return self._saw("update")

    def on_evaluation(self, loop, scores):
        assert scores.returns.shape == (4,)
        return self._saw("evaluation", loop.step)

    def on_checkpoint(self, loop, path):
        assert store.load(path).step == loop.step
        return self._saw("checkpoint", loop.step)

    def on_stop(self, loop, reason):
        return self._saw("stop", reason)


def names(seen: list[tuple]) -> list[str]:
    return [event[0] for event in seen]


@KINDS
def test_order(run, env, path):
    recorder = Recorder()
    done = run(env, path=path, steps=640, eval_every=128, checkpoint_every="192", callbacks=(recorder,))
    seen = recorder.seen
    assert seen[:6] == [("start", 0), *(("episode start", i) for i in range(4)), ("iteration start", 0)]
    assert seen[-1] == ("stop", "steps") and names(seen).count("stop") == 1
    step = 0
    expected: list[tuple] = []
    for i in range(10):
        step += 64
        expected += [("iteration start", i), ("update",), ("iteration end", i)]
        if step < 640:
            expected += [("evaluation", step)] * (step % 128 == 0) + [("checkpoint", step)] * (step % 192 == 0)
    expected += [("checkpoint", 640), ("evaluation", 640), ("checkpoint", 640)]  # safe first, then scored, then with the score
    outside = [event for event in seen[5:-1] if not event[0].startswith("episode")]
    assert outside == expected
    # episodes: between their iteration's start and its update; in order of time, then environment; one starts where one ends
    inside = " ".join(names(seen))
    assert "iteration end episode" not in inside and "update episode" not in inside and "evaluation episode" not in inside
    ends = [event for event in seen if event[0] == "episode end"]
    assert len(ends) == done.result["episodes"] > 10
    for i, event in enumerate(seen):
        if event[0] == "episode end":
            assert seen[i + 1] == ("episode start", event[1])
    begun, clock, iteration = [0] * 4, [], -1
    for event in seen:
        if event[0] == "iteration start":
            iteration = event[1]
        elif event[0] == "episode end":
            _, env_index, at, length = event
            now = iteration * 16 + at + 1
            assert now - begun[env_index] == length  # lengths add up, environment by environment
            begun[env_index] = now
            clock.append((now, env_index))
    assert clock == sorted(clock)


@KINDS
def test_watching_changes_nothing(run, env, path):
    settings = {"path": path, "steps": 1280, "eval_every": 256, "checkpoint_every": "320"}
    calm = run(env, **settings)

    class Quiet(Callback):
        def on_stop(self, loop, reason):
            return True

    for callback in (Recorder(), Quiet()):
        watched = run(env, callbacks=(callback,), **settings)
        assert watched.sha == calm.sha
        assert (watched.folder / "metrics.jsonl").read_bytes() == (calm.folder / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(("event", "step"), [
    (("start", 0), 0), (("iteration start", 2), 192), (("iteration end", 3), 256), (("update",), 64), (("evaluation", 256), 256),
    (("checkpoint", 192), 192),
], ids=lambda value: str(value[0]) if isinstance(value, tuple) else "")
def test_true_stops_and_what_was_learned_is_saved(run, event, step):
    done = run(steps=6400, eval_every=128, checkpoint_every="192", callbacks=(Recorder(stop_at=event),))
    assert (done.result["steps"], done.result["stopped_by"]) == (step, "callback")
    assert store.newest(done.folder)[0].step == step


def test_all_are_called_in_the_order_given(run):
    heard: list[str] = []

    class Named(Callback):
        def __init__(self, name):
            self.name = name

        def on_update(self, loop, metrics):
            heard.append(self.name)
            return self.name == "a"  # the second still hears of it

    run(steps=640, callbacks=(Named("a"), Named("b")))
    assert heard == ["a", "b"]


def test_episodes_are_not_started_again_on_resume(run):
    recorder = Recorder()
    done = run(steps=320)
    run(steps=640, out=done.folder, callbacks=(recorder,))
    assert recorder.seen[0] == ("start", 320) and recorder.seen[1] == ("iteration start", 5)
