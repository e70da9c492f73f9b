"""Tables under MPI, with real ranks: the same bits for any number of them, a server without waiting, ranks that fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import drivers
import pytest

import shoal

pytest.importorskip("mpi4py")
if shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])) is None:
    pytest.skip("no mpiexec", allow_module_level=True)

TRAIN = ("train", "q_learning", "FrozenLake-v1", "--preset", "none", "--seed", "3", "--sync-every", "500", "--horizon", "80000",
         "--eval-episodes", "5", "--runtime", "mpi", "--quiet", "--json")


def launch(folder: Path, ranks: int, *args: str, **environment: str) -> subprocess.Popen[str]:
    """``mpiexec -n RANKS shoal ARGS``."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PYTHONPATH": str(Path(shoal.__file__).parents[1]), "PATH": path} | environment
    return subprocess.Popen(["mpiexec", "-n", str(ranks), sys.executable, "-m", "shoal", *args], cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def result_of(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=drivers.PATIENCE_S)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def alone(folder: Path, steps: int = 40_003) -> dict:
    agent = shoal.QLearning(sync_every=500, horizon=80_000.0)
    return shoal.train(agent, "FrozenLake-v1", steps=steps, seed=3, out=folder, eval_episodes=5, lane_envs=1).result


def test_ranks_give_the_bits_of_one_process(tmp_path):
    calm = alone(tmp_path / "calm")
    for ranks in (1, 2, 4):
        found = result_of(launch(tmp_path, ranks, *TRAIN, "--steps", "40003", "--out", f"ranks{ranks}"))
        assert found["params_sha256"] == calm["params_sha256"] and found["steps"] == 40_003 and found["workers"] == ranks
    assert (tmp_path / "ranks2" / "metrics.jsonl").read_bytes() == (tmp_path / "calm" / "metrics.jsonl").read_bytes()


def test_a_job_resumes_exactly(tmp_path):
    calm = alone(tmp_path / "calm", 80_000)
    result_of(launch(tmp_path, 2, *TRAIN, "--steps", "40003", "--out", "run"))
    found = result_of(launch(tmp_path, 2, "resume", "run", "--steps", str(80_000 - 40_003), "--quiet", "--json"))
    assert found["params_sha256"] == calm["params_sha256"] and found["episodes"] == calm["episodes"]


def test_a_server_takes_every_step(tmp_path):
    found = result_of(launch(tmp_path, 3, *TRAIN, "--steps", "40003", "--mode", "async", "--out", "run"))
    ledger = found["ledger"]
    assert found["steps"] == 40_003 and found["workers"] == 2
    assert ledger["produced"] == ledger["learned"] > 0


@pytest.mark.parametrize("ranks, more, said", [
    (2, ("--num-envs", "1"), "2 ranks, but num_envs makes 1 lane of 1"),
    (1, ("--mode", "async"), "at least 2 are needed"),
])
def test_what_cannot_be_is_said_in_a_line(tmp_path, ranks, more, said):
    process = launch(tmp_path, ranks, *TRAIN, "--steps", "4000", *more, "--out", "run")
    _, err = process.communicate(timeout=drivers.PATIENCE_S)
    assert process.returncode != 0 and said in err and "Traceback" not in err


def test_mpi_that_is_not_installed_is_named(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('not here')")
    process = drivers.start(tmp_path, *TRAIN, "--steps", "4000", "--out", "run",
                            PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(shoal.__file__).parents[1])]))
    _, err = process.communicate(timeout=drivers.PATIENCE_S)
    assert process.returncode == 2 and err.strip().endswith("pip install 'shoal[mpi]'") and "Traceback" not in err


def ranks_of(pid: int) -> list[int]:
    """The processes of a job, by what they run."""
    found = subprocess.run(["pgrep", "-f", "shoal train q_learning"], capture_output=True, text=True).stdout.split()
    return [int(word) for word in found if _above(int(word), pid) and "-m\0shoal" in Path(f"/proc/{word}/cmdline").read_text()
            and not Path(f"/proc/{word}/cmdline").read_text().startswith("mpiexec")]


def _above(pid: int, leader: int) -> bool:
    while pid > 1:
        if pid == leader:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


LONG = 12_000_000


def begin(folder: Path, *more: str, ranks: int = 2) -> tuple[subprocess.Popen[str], list[int]]:
    """A long job, some way in, and its ranks."""
    process = launch(folder, ranks, *TRAIN, "--steps", str(LONG), "--checkpoint-every", "3000000", "--log-every", "8000", *more,
                     "--out", "run")
    drivers.wait_for(process, lambda: drivers.rows(folder / "run") > 500)
    found = ranks_of(process.pid)
    assert len(found) == ranks
    return process, found


def all_gone(ranks: list[int]) -> None:
    drivers.wait_until(lambda: not any(map(drivers.is_running, ranks)), 10.0)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job_and_the_job_resumes_to_the_same_bits(tmp_path):
    calm = alone(tmp_path / "calm", LONG)
    process, ranks = begin(tmp_path)
    os.kill(max(ranks), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    all_gone(ranks)
    found = result_of(launch(tmp_path, 2, "resume", "run", "--quiet", "--json"))
    assert found["params_sha256"] == calm["params_sha256"] and found["episodes"] == calm["episodes"]
    assert 0 < found["steps_again"] < LONG


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["server", "worker"])
def test_a_server_or_its_worker_that_is_killed_ends_the_job_and_the_loss_is_counted(tmp_path, whom):
    process, ranks = begin(tmp_path, "--mode", "async", ranks=3)
    by_rank = {int(_variable(pid, "PMI_RANK")): pid for pid in ranks}
    os.kill(by_rank[0 if whom == "server" else 2], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    all_gone(ranks)
    rows = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    kept = max(int(path.name.split("-")[1]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    found = result_of(launch(tmp_path, 3, "resume", "run", "--quiet", "--json"))
    assert found["steps"] == LONG and found["steps_again"] == max(rows) - kept > 0
    assert found["ledger"]["produced"] == found["ledger"]["learned"] > 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_return" not in row] == list(range(8_000, LONG + 1, 8_000))  # none twice, none missing


def _variable(pid: int, name: str) -> str:
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)[name]


@pytest.mark.parametrize("end", [*(pytest.param(end, marks=pytest.mark.slow) for end in ("success", "all")), "error", "SIGINT", "rank"])
def test_nothing_is_left_in_shared_memory(tmp_path, end):
    """Success, a refusal, SIGINT, SIGKILL of a rank, SIGKILL of mpiexec and with it of all."""
    before = drivers.shared_memory()
    if end in ("success", "error"):
        process = launch(tmp_path, 2, *TRAIN, "--steps", "4000", *(("--num-envs", "1") if end == "error" else ()), "--out", "run")
        process.communicate(timeout=drivers.PATIENCE_S)
    else:
        process, ranks = begin(tmp_path, "--steps", "100000000000")
        if end == "rank":
            os.kill(ranks[0], signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT if end == "SIGINT" else signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        all_gone(ranks)
        if end == "SIGINT":  # which reaches every rank; rank 0 saves
            assert process.returncode == 130 and "Traceback" not in err
            saved = json.loads(out.splitlines()[-1])
            assert saved["stopped_by"] == "SIGINT" and (tmp_path / "run" / "checkpoints" / f"step-{saved['steps']}").is_dir()
    assert (process.returncode == 0) == (end == "success")
    drivers.nothing_more_than(before)


def test_an_error_in_a_rank_is_said_there_and_ends_the_job(tmp_path):
    """The environment of one rank raises: rank, process and cause in one line, and nobody waits."""
    (tmp_path / "broken.py").write_text(
        "import os, gymnasium, shoal\n"
        "from shoal.envs.gymnasium import GymEnv\n"
        "class Broken(GymEnv):\n"
        "    def __init__(self):\n"
        "        super().__init__('FrozenLake-v1')\n"
        "        self.left = 300\n"
        "    def step(self, action):\n"
        "        self.left -= 1\n"
        "        if self.left < 0 and os.environ.get('PMI_RANK') == '1':\n"
        "            raise RuntimeError('the ice is gone')\n"
        "        return super().step(action)\n"
        "shoal.register(env={'broken': Broken})\n")
    process = launch(tmp_path, 2, "train", "q_learning", "broken", "--plugin", "broken", "--steps", "40000", "--sync-every", "100",
                     "--runtime", "mpi", "--quiet", "--out", "run", PYTHONPATH=os.pathsep.join([str(tmp_path),
                                                                                               str(Path(shoal.__file__).parents[1])]))
    _, err = process.communicate(timeout=drivers.PATIENCE_S)
    assert process.returncode != 0 and "rank 1 of 2" in err and "the ice is gone" in err
