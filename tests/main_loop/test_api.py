"""What a user calls from Python: train, resume, evaluate, load, save, MainLoop."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import shoal
from shoal import lane, registry
from shoal.errors import ConfigError, StoreError

SMALL = {"num_envs": 4, "seed": 3, "eval_episodes": 4, "checkpoint_every": "0"}


def small() -> shoal.PPO:
    return shoal.PPO(num_steps=16, num_minibatches=2, num_epochs=2, hidden=(8,), learning_rate=3e-3)


def test_importing_does_nothing():
    code = ("import sys, threading, os\nbefore = dict(os.environ)\nimport shoal\n"
            "loaded = {name.split('.')[0] for name in sys.modules}\n"
            "assert not loaded & {'jax', 'jaxlib', 'gymnasium', 'equinox', 'optax', 'rich', 'ray', 'mpi4py'}, loaded\n"
            "assert threading.active_count() == 1 and dict(os.environ) == before and 'train' in dir(shoal)\n"
            "try:\n    shoal.trian\nexcept AttributeError as error:\n    assert \"'train'\" in str(error)\n"
            "else:\n    raise SystemExit(1)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_continuous_policy_acts_in_the_environments_units(tmp_path):
    run = shoal.train(small(), "Pendulum-v1", steps=640, out=tmp_path / "run", **SMALL)
    policy = shoal.load(run.folder)
    engine = run._loop.engine
    draw = np.random.default_rng(0)
    observed = draw.normal(size=(20, 3)) * [1, 1, 30]  # far outside what was seen: some actions must be clipped
    for obs in observed:
        action = policy.act(obs)
        assert action.shape == (1,) and -2.0 <= action[0] <= 2.0
        dist = engine.policy().dist(engine.policy().features(np.asarray(obs, np.float32)[None]), None)
        np.testing.assert_allclose(action, 2 * np.clip(np.asarray(dist.mean)[0], -1, 1), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(run.act(obs), action) if obs is observed[0] else None


def test_a_discrete_policy_is_greedy_and_scores_agree(tmp_path):
    run = shoal.train(small(), "CartPole-v1", steps=640, out=tmp_path / "run", **SMALL)
    assert run.result["path"] == "ported" and run.result["steps"] == 640 and "640 steps" in repr(run)
    scores, again = run.evaluate(episodes=4), shoal.evaluate(run.folder, episodes=4)
    assert np.isnan(scores.pop("success_rate")) and np.isnan(again.pop("success_rate"))  # CartPole-v1 says nothing of success
    assert scores == again and scores["mean_return"] == run.result["eval_return"] and scores["episodes"] == 4
    assert scores["min_return"] <= scores["mean_return"] <= scores["max_return"]
    sampled = [shoal.evaluate(run.folder, episodes=4, sampled=True, seed=seed)["mean_return"] for seed in (8, 9)]
    assert sampled[0] != sampled[1]
    policy, engine = shoal.load(run.folder), run._loop.engine
    seen = set()
    for obs in np.random.default_rng(1).normal(size=(30, 4)):
        action = policy.act(obs)
        dist = engine.policy().dist(engine.policy().features(np.asarray(obs, np.float32)[None]), None)
        assert type(action) is int and action == int(np.argmax(np.asarray(dist.logits)[0]))
        seen.add(action)
    assert seen == {0, 1}
    with pytest.raises(ConfigError, match="episodes = 0"):
        shoal.evaluate(run.folder, episodes=0)


def test_saved_runs_load_and_go_on(tmp_path):
    whole = shoal.train(small(), "CartPole-v1", steps=960, out=tmp_path / "whole", **SMALL)
    run = shoal.train(small(), "CartPole-v1", steps=640, out=tmp_path / "run", **SMALL)
    saved = run.save(tmp_path / "copy")
    obs = np.array([0.1, -0.2, 0.05, 0.3])
    assert shoal.load(saved).act(obs) == run.act(obs)
    again = shoal.resume(saved, steps=320)
    assert again.result["params_sha256"] == whole.result["params_sha256"] != run.result["params_sha256"]
    assert again.result["steps"] == 960
    with pytest.raises(StoreError, match="already holds a run"):
        run.save(tmp_path / "copy")


def test_objects_without_a_name_run_but_do_not_resume(tmp_path):
    env = shoal.make("cartpole", 50)
    loop = shoal.MainLoop(env, small(), out=tmp_path / "run", **SMALL)
    result = loop.run(steps=640)
    named = shoal.train(small(), "cartpole", steps=640, max_episode_steps=50, out=tmp_path / "named", **SMALL)
    assert result["params_sha256"] == named.result["params_sha256"]
    for use in (shoal.resume, shoal.evaluate, shoal.load):
        with pytest.raises(ConfigError, match="given as an object without a name; register it"):
            use(tmp_path / "run")


def test_a_registered_net_is_used_by_name(tmp_path, monkeypatch):
    import equinox as eqx

    monkeypatch.setattr(registry, "_added", {kind: {} for kind in registry.BUILTIN})
    shoal.register(net={"straight": lambda inputs, outputs, *, key: eqx.nn.Linear(inputs, outputs, key=key)})
    run = shoal.train(shoal.PPO(num_steps=16, num_minibatches=2, num_epochs=2, net="straight"), "cartpole", steps=128,
                      out=tmp_path / "run", **SMALL)
    weights = [x.shape for name, x in run._loop.engine.learner().items() if "actor" in name and x.ndim == 2]
    assert weights == [(2, 4)]  # one matrix, and no hidden layer
    assert shoal.resume(run.folder, steps=64).result["steps"] == 192


def test_no_folder_before_the_run():
    with pytest.raises(ConfigError, match="no folder yet"):
        _ = shoal.MainLoop("cartpole", small()).folder


@pytest.mark.parametrize(("agent", "env", "why"), [
    (shoal.DQN(), "pendulum", "action of 'pendulum' is a Box: values of actions expect Discrete"),
    (shoal.TD3(), "CartPole-v1", "expects actions that are real numbers between bounds, got Discrete"),
    (shoal.PPO(net="cnn"), "cartpole", "net = 'cnn': expected image observations"),
    (shoal.LinearQ(), "CartPole-v1", "observation of 'CartPole-v1' has no bounds on 1, 3: these features need feature_low")])
@pytest.mark.parametrize("runtime", ["local", "processes"])
def test_what_does_not_suit_is_refused_before_a_folder_exists(agent, env, why, runtime, tmp_path):
    with pytest.raises(ConfigError, match=why):
        shoal.train(agent, env, steps=64, runtime=runtime, out=tmp_path / "run", **SMALL)
    assert not list(tmp_path.iterdir())


def test_teams_are_named_and_checked(tmp_path):
    with pytest.raises(ConfigError, match="2 agents: give --team"):
        shoal.train(small(), "matrix_game", steps=64, out=tmp_path / "a", **SMALL)
    with pytest.raises(ConfigError, match="has a single agent"):
        shoal.train(small(), "cartpole", steps=64, team="shared", out=tmp_path / "b", **SMALL)
    run = shoal.train(shoal.team.independent(small()), "matrix_game", steps=128, out=tmp_path / "c", **SMALL)
    assert run._loop.plan.team == "independent"
    action = shoal.load(run.folder).act(np.zeros((2, 4), np.float32))
    assert action.shape == (2,) and set(action.tolist()) <= {0, 1}
    assert lane.role(0.0, 1, greedy=True).greedy.tolist() == [1.0]
