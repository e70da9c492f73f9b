"""Runs that learn from memory: where rows lie changes no bit, they come back with a resume, and what cannot work is said."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import store
from shoal.algos.dqn import DQN
from shoal.buffers import layout
from shoal.errors import ConfigError, StoreError
from shoal.testing import faults

STORES = ("device", "host", "mapped")
HELD = ("replay_rows", "priorities_ignored", "priorities_bad")


def agent(where: str, **fields) -> DQN:
    return DQN(**({"num_steps": 4, "capacity": 400, "start_size": 100, "batch_size": 32, "update_every": 4, "hidden": (8,), "n_step": 3,
                   "prioritised": True, "store": where, "horizon": 2000.0} | fields))


def go(run, where, steps=1024, **settings):
    who = settings.pop("who", None) or agent(where)
    return run("CartPole-v1", who, path="ported", steps=steps, log_every=256, eval_every=256, lane_envs=2, **settings)


def test_where_rows_lie_changes_no_bit_and_a_resume_goes_on(run):
    whole = {where: go(run, where) for where in STORES}
    assert len({done.sha for done in whole.values()}) == 1
    held = {where: [{name: row[name] for name in HELD} for row in done.rows()] for where, done in whole.items()}
    assert held["device"] == held["host"] == held["mapped"]
    # means over windows of 16 iterations of 16 rows each: 16 … 256 and 272 … 400, where it is full; all priorities were of use
    assert held["device"] == [dict(zip(HELD, (rows, 0, 0), strict=True)) for rows in (136.0, 364.0, 400.0, 400.0)]
    for where in STORES:
        half = go(run, where, steps=512)
        again = go(run, where, out=half.folder)
        assert again.sha == whole[where].sha
        assert (again.folder / "metrics.jsonl").read_bytes() == (whole[where].folder / "metrics.jsonl").read_bytes()
    plain = {where: go(run, where, who=agent(where, prioritised=False)) for where in STORES}
    assert len({done.sha for done in plain.values()}) == 1 and plain["device"].sha != whole["device"].sha


def test_a_pool_has_the_same_bits_in_files_and_after_a_resume(run):
    def pooled(where, **settings):
        return go(run, where, who=agent(where, shards=3), **({"steps": 768} | settings))  # of 2 lanes

    whole = {where: pooled(where) for where in ("device", "mapped")}
    assert whole["device"].sha == whole["mapped"].sha
    half = pooled("mapped", steps=512)
    again = pooled("mapped", out=half.folder)
    assert again.sha == whole["mapped"].sha
    assert (again.folder / "metrics.jsonl").read_bytes() == (whole["mapped"].folder / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_a_pool_is_compiled_in_and_comes_back(run):
    who = agent("device", shards=2, routing="lane", n_step=4)
    settings = {"steps": 768, "log_every": 256, "eval_every": 256, "lane_envs": 2}
    whole, half = (run("cartpole", who, **(settings | {"steps": steps})) for steps in (768, 512))
    again = run("cartpole", who, **settings, out=half.folder)
    assert again.result["path"] == "fused" and again.sha == whole.sha
    assert (again.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()
    np.testing.assert_array_equal(whole.loop.engine._carry.desk.buffer.index.count, [48, 48])
    assert [whole.rows()[-1][name] for name in ("replay_rows", "replay_rows_min", "replay_rows_max")] == [400, 200, 200]


@pytest.mark.parametrize("where", ["device", pytest.param("host", marks=pytest.mark.slow), pytest.param("mapped", marks=pytest.mark.slow)])
def test_no_window_runs_across_an_evaluation_that_gave_up_episodes(run, where):
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    done = run(vector, agent(where, prioritised=False, capacity=64, start_size=48, batch_size=8), steps=64, num_envs=2,
               eval_every=32, eval_episodes=2)
    held = done.loop.engine._state.desk.buffer
    (form,) = held.form
    last = next(field for field in form.fields if field.name == "last").word
    words = layout.take(held.store.words, np.arange(64)).reshape(32, 2, -1)  # 32 steps of 2 environments
    ended = np.asarray(words[..., last] != 0)
    assert ended[[15, 31]].all(), "the steps before an evaluation end there"
    assert not ended[[0, 1, 2, 3, 16, 17, 18, 19]].any(), "no pole falls so soon"
    vector.close()


def test_files_are_part_of_a_checkpoint(run, capfd):
    calm = go(run, "mapped")
    done = go(run, "mapped", steps=640, checkpoint_every="256")
    newest = store.found(done.folder)[0]
    rows = sorted(newest.glob("rows-*.rows"))
    assert rows and (newest / "segments.json").exists()
    damaged = bytearray(rows[0].read_bytes())
    damaged[7] ^= 1
    rows[0].unlink()  # it may be linked from elsewhere
    rows[0].write_bytes(damaged)
    capfd.readouterr()
    again = go(run, "mapped", out=done.folder)
    assert f"skipped damaged {newest.name}" in capfd.readouterr().err
    assert again.sha == calm.sha


def test_what_is_full_is_linked_and_not_written_again(run, tmp_path):
    done = go(run, "mapped", steps=1024, checkpoint_every="512", keep=2)
    live = {path.stat().st_ino for path in (done.folder / "replay").iterdir()}
    kept = {path.stat().st_ino for path in store.found(done.folder)[0].glob("*.rows")}
    assert live & kept, "nothing is linked"
    assert kept - live, "what is still written to must not be linked"


def test_what_cannot_work_is_refused_before_a_folder_exists(run, tmp_path):
    with pytest.raises(ConfigError, match="cannot be compiled in; use --path ported"):
        run("cartpole", agent("host"), path="fused", steps=64, out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"capacity = 100000000: .* MiB of memory for .* rows, more than the 10\.0 MiB there are"):
        run("cartpole", agent("device", capacity=10**8, memory_limit=10 / 1024), steps=64, out=tmp_path / "b")
    with pytest.raises(ConfigError, match=r"capacity = 2000000000: .* MiB of files, more than the .* that are free on the disk"):
        run("cartpole", agent("mapped", capacity=2 * 10**9, prioritised=False, batch_size=8), steps=64, out=tmp_path / "c")
    with pytest.raises(ConfigError, match="batch_size = 4096: larger than the buffer"):
        run("cartpole", agent("device", batch_size=4096), steps=64, out=tmp_path / "d")
    with pytest.raises(ConfigError, match=r"routing = 'lane': expected as many lanes for each of the 3 shards, got 2"):
        run("cartpole", agent("device", shards=3, routing="lane"), steps=64, lane_envs=2, out=tmp_path / "e")
    with pytest.raises(ConfigError, match=r"n_step = 5: a pool of 2 shards cuts what it keeps into chunks of num_steps = 4"):
        run("cartpole", agent("host", shards=2, n_step=5), steps=64, out=tmp_path / "f")
    with pytest.raises(ConfigError, match=r"shards = 2: .* hindsight .*; set one of the two"):
        run("bit_flip", agent("device", shards=2, n_step=1, prioritised=False, hindsight="future"), steps=64, out=tmp_path / "g")
    with pytest.raises(ConfigError, match=r"capacity = 100000000: .* more than the 10\.0 MiB there are"):
        run("cartpole", agent("device", capacity=10**8, memory_limit=10 / 1024, shards=4), steps=64, out=tmp_path / "h")
    assert not list(tmp_path.iterdir())


def test_what_is_said_of_the_buffer_apart_is_the_agents_own(run, tmp_path):
    one = run("cartpole", agent("device", shards=3, n_step=2, capacity=600), steps=512)
    told = run("cartpole", agent("device"), steps=512, replay=shoal.ReplayPool(3, n_step=2, capacity=600))
    assert told.sha == one.sha and told.result["updates"] == one.result["updates"] > 0
    assert shoal.resume(told.folder, steps=64).result["steps"] == 576  # its record names all of it
    for who, replay, why in ((agent("device"), shoal.Replay(capacty=5), "replay: unknown setting 'capacty'; did you mean 'capacity'"),
                             (agent("device"), shoal.Replay(hidden=(4,)), "replay: unknown setting 'hidden'"),
                             (agent("device"), {"capacity": 5}, r"replay = {'capacity': 5}: expected shoal\.Replay\(\.\.\.\) or"),
                             (agent("device"), shoal.ReplayPool(batch_size=4096), "batch_size = 4096: larger than the buffer"),
                             (shoal.PPO(), shoal.Replay(), "replay: PPO does not learn from a replay buffer; leave it out")):
        with pytest.raises(ConfigError, match=why):
            run("cartpole", who, steps=64, replay=replay, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_disk_that_fills_up_under_the_rows_is_an_error_that_names_them(run):
    faults.arm("buffer", "allocate", 1, "enospc", forever=True)
    with pytest.raises(StoreError, match=r"replay: no room for another .* MiB of replay: No space left on device"):
        go(run, "mapped")


def test_a_policy_is_loaded_beside_a_run_without_touching_its_rows(run):
    done = go(run, "mapped")
    before = {path.name: path.stat().st_mtime_ns for path in (done.folder / "replay").iterdir()}
    assert shoal.evaluate(done.folder, episodes=2)["episodes"] == 2
    assert {path.name: path.stat().st_mtime_ns for path in (done.folder / "replay").iterdir()} == before
