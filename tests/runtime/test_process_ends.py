"""However a driver ends, its workers end with it, nothing is left behind, and the run goes on from where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from drivers import PATIENCE_S, is_running, nothing_more_than, rows, shared_memory, start, wait_for, workers_of

import shoal

ARGS = ["train", "ppo", "CartPole-v1", "--runtime", "processes", "--workers", "2", "--num-envs", "4", "--lane-envs", "2",
        "--num-steps", "16", "--num-minibatches", "2", "--num-epochs", "2", "--hidden", "8", "--seed", "3", "--preset", "none",
        "--eval-episodes", "4", "--log-every", "64", "--checkpoint-every", "0", "--json"]


@pytest.mark.parametrize("number", [
    pytest.param(number, marks=[pytest.mark.slow] if number == signal.SIGTERM else [], id=number.name)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)])
def test_a_stopped_driver_leaves_nothing_and_goes_on(tmp_path, number):
    before = shared_memory()
    driver = start(tmp_path, *ARGS, "--steps", "6400000", "--out", "run")
    wait_for(driver, lambda: rows(tmp_path / "run") >= 10)
    workers = workers_of(driver.pid)
    assert len(workers) == 2
    driver.send_signal(number)
    out, err = driver.communicate(timeout=PATIENCE_S)
    until = time.monotonic() + 5.0
    while any(map(is_running, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
    nothing_more_than(before)
    assert driver.returncode == (-9 if number == signal.SIGKILL else 128 + number) and "Traceback" not in err
    if number != signal.SIGKILL:
        result = json.loads(out.splitlines()[-1])
        assert result["stopped_by"] == number.name and result["steps"] > 0
        ledger = result["ledger"]
        assert ledger["produced"] == ledger["learned"] + ledger["in_flight"] and ledger["lost"] == 0


@pytest.mark.slow
def test_an_interrupt_is_heard_while_a_worker_is_silent(tmp_path):
    """All workers are stopped: waiting for them could take a minute."""
    driver = start(tmp_path, *ARGS, "--steps", "6400000", "--out", "run")
    wait_for(driver, lambda: rows(tmp_path / "run") >= 3)
    for worker in workers_of(driver.pid):
        os.kill(worker, signal.SIGSTOP)
    time.sleep(0.5)
    begun = time.monotonic()
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 130 and time.monotonic() - begun < 30 and "Traceback" not in err
    saved = json.loads(out.splitlines()[-1])
    assert saved["stopped_by"] == "SIGINT" and saved["steps"] > 0


SCRIPT = '''
import numpy as np
import shoal
from shoal.specs import Box, Discrete, EnvSpec


class Mine:
    spec = EnvSpec("mine", Box((2,)), Discrete(2), max_episode_steps=9)

    def reset(self, seed):
        self.x = np.float32(seed % 7)
        return np.asarray([self.x, 1], np.float32)

    def step(self, action):
        self.x = np.float32(0.5 * self.x + action)
        return np.asarray([self.x, 0], np.float32), float(self.x), False, False, dict()

    def close(self):
        pass


shoal.register(env={{"mine": Mine}})
agent = shoal.PPO(num_steps=8, hidden=(8,), num_minibatches=2)
{guard}
    done = shoal.train(agent, {env}, steps=128, num_envs=4, lane_envs=2, runtime=shoal.Processes(2), eval_episodes=2, out={out!r})
    print(done.result["steps"], done.result["workers"])
'''


def script(tmp_path: Path, *, guard: str = 'if __name__ == "__main__":', env: str = '"mine"', prompt: bool = False) -> tuple[int, str, str]:
    """Run a user's script, or type it at a prompt."""
    text = SCRIPT.format(guard=guard, env=env, out=str(tmp_path / "run"))
    (tmp_path / "script.py").write_text(text)
    path = os.pathsep.join(filter(None, [str(Path(shoal.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, *([] if prompt else ["script.py"])], cwd=tmp_path, text=True, capture_output=True,
                          input=text if prompt else "", timeout=PATIENCE_S, env=os.environ | {"PYTHONPATH": path})
    return done.returncode, done.stdout, done.stderr


def test_an_environment_of_the_script_itself_works(tmp_path):
    code, out, err = script(tmp_path)
    assert (code, out.split()) == (0, ["128", "2"]), err


@pytest.mark.parametrize(("how", "told"), [
    ({"guard": "if True:"}, 'put that under `if __name__ == "__main__":`'),
    ({"env": 'shoal.make("cartpole")'}, "was given as an object, which other processes cannot make; register it"),
    ({"prompt": True}, "other processes cannot find what was registered in a notebook or at a prompt; put it into a module"),
], ids=["no guard", "object", "prompt"])
def test_what_workers_cannot_find_is_told_in_a_line(tmp_path, how, told):
    code, _, err = script(tmp_path, **how)
    assert code == 1 and told in err.splitlines()[-1], err
    assert "guard" in how or not (tmp_path / "run").exists()
