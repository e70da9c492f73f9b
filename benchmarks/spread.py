"""Speed of environments spread over worker processes: against one worker, and against peers that spread theirs."""

from __future__ import annotations

from benchmarks.contest import Entry, Pair, Work, compete

_SINGLE = {"OMP_NUM_THREADS": "1"}


def _shoal(name: str, work: Work, seconds: float, *more: str) -> Entry:
    return Entry(name, "shoal_worker", [*work.args, "--seconds", str(seconds), "--path", "ported", "--threads", "1", *more])


def _sb3(name: str, work: Work, seconds: float, *more: str) -> Entry:
    return Entry(name, "sb3_worker", [*work.args, "--seconds", str(seconds), "--threads", "1", *more], "t1", _SINGLE)


def _spreading(work: Work, seconds: float, *more: str) -> list[Entry]:
    """The peers that keep environments in several processes; the last two in as many as shoal has workers."""
    two = [*work.args, "--seconds", str(seconds), "--workers", "2", *more]
    return [_sb3("Stable-Baselines3, SubprocVecEnv", work, seconds, *more, "--path", "subproc"),
            Entry("RLlib, 2 env runners", "rllib_worker", two, "r1", _SINGLE),
            Entry("Sample Factory, 2 rollout workers", "sample_factory_worker", two, "s1", _SINGLE)]


def bench_burning(seconds: float) -> bool:
    """CartPole whose steps burn 1 ms of CPU time, 16 environments: two workers against one, and against peers with several processes."""
    work = Work("PPO, Gymnasium CartPole burning 1 ms a step, 16 envs × 32 steps", 16, 32)
    two, one, env = "2 workers, in step", "shoal, 1 worker", ("--env", "Burning-v0")
    ours = [_shoal(two, work, seconds, *env, "--workers", "2"), _shoal(one, work, seconds, *env, "--workers", "1")]
    theirs = _spreading(work, seconds, *env)
    return compete("burning", work, ours + theirs, [Pair(two, one, 1.8), *(Pair(two, peer.name, 1.0) for peer in theirs)])


def bench_spread(seconds: float) -> bool:
    """Gymnasium's CartPole-v1, 16 environments over two workers, against peers with several processes."""
    work = Work("PPO, Gymnasium CartPole-v1, 16 envs × 128 steps, several processes", 16, 128)
    two, theirs = "2 workers, in step", _spreading(work, seconds)
    return compete("spread", work, [_shoal(two, work, seconds, "--workers", "2"), *theirs], [Pair(two, peer.name, 1.0) for peer in theirs])


def bench_lag(seconds: float) -> bool:
    """Gymnasium's CartPole-v1, 8 environments in one worker that collects while the driver learns, against SB3 and SBX in one process."""
    work = Work("PPO, Gymnasium CartPole-v1, 8 envs × 128 steps, one worker at lag 1", 8, 128)
    ours, sb3, sbx = "1 worker, lag 1", "Stable-Baselines3", "SBX"
    entries = [_shoal(ours, work, seconds, "--workers", "1", "--lag", "1"), _sb3(sb3, work, seconds),
               Entry(sbx, "sb3_worker", [*work.args, "--seconds", str(seconds), "--path", "sbx"], "t1", {"JAX_PLATFORMS": "cpu"})]
    return compete("lag", work, entries, [Pair(ours, sb3, 7.0), Pair(ours, sbx, 7.0)])
