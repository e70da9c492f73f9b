"""User code comes in by name: an environment, a network and an algorithm of one's own train, resume and evaluate."""

from __future__ import annotations

import inspect
import json
import sys

import pytest

from shoal import cli, registry
from shoal.algos import ppo

ENV = '''
import equinox as eqx
import jax, jax.numpy as jnp
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Step, pytree


@pytree
class Line:
    """Walk right for a reward."""

    length: int = 5
    """Cells."""

    @property
    def spec(self):
        return EnvSpec("line", obs=Box((1,), 0.0, 1.0), action=Discrete(2), max_episode_steps=20)

    def reset(self, key):
        place = jnp.zeros((), jnp.int32)
        return place, place[None] / self.length

    def step(self, place, action, key):
        place = jnp.maximum(place + 2 * action - 1, 0)
        over = place >= self.length
        return place, Step(place[None] / self.length, over.astype(jnp.float32), over, jnp.zeros((), bool), {})


class Small(eqx.Module):
    linear: eqx.nn.Linear

    def __init__(self, num_inputs, num_outputs, *, key):
        self.linear = eqx.nn.Linear(num_inputs, num_outputs, key=key)

    def __call__(self, x):
        return jnp.tanh(self.linear(x))


import shoal
shoal.register(env={"line": Line}, net={"small": Small}, algo={"twin": Twin})
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch) -> str:
    """An importable module with all three; the algorithm is a copy of PPO under another name."""
    (tmp_path / "my_plugin.py").write_text(inspect.getsource(ppo).replace("class PPO", "class Twin") + ENV)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_added", {kind: {} for kind in registry.BUILTIN})
    monkeypatch.setattr(registry, "_plugins", [])
    yield "my_plugin"
    sys.modules.pop("my_plugin", None)


def test_by_name_from_the_command_line(plugin, shoal_process, flags, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = shoal_process("train", "twin", "line", "--plugin", plugin, *flags, "--net", "small", "--env-option", "length=4",
                            "--steps", "640", "--out", "run", "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    first = json.loads(out.splitlines()[-1])
    assert (first["algo"], first["env"], first["steps"]) == ("twin", "line", 640)

    for command in ("resume", "eval"):  # a file cannot import code: the user names the plugin again
        assert cli.main([command, "run"]) == 2
        err = capsys.readouterr().err
        assert "needs plugin 'my_plugin'" in err and "--plugin my_plugin" in err and err.count("\n") == 1

    assert cli.main(["resume", "run", "--plugin", plugin, "--steps", "640", "--json", "--quiet"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["steps"] == 1280 and again["params_sha256"] != first["params_sha256"]
    assert cli.main(["eval", "run", "--plugin", plugin, "--episodes", "4", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["episodes"] == 4 and 0.0 <= scores["mean_return"] <= 1.0


def test_the_copy_learns_as_the_original(plugin, flags, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shas = []
    for algo in ("ppo", "twin"):
        args = ["train", algo, "cartpole", "--plugin", plugin, *flags, "--steps", "640", "--out", algo, "--json", "--quiet"]
        assert cli.main(args) == 0
        shas.append(json.loads(capsys.readouterr().out.splitlines()[-1])["params_sha256"])
    assert shas[0] == shas[1]
