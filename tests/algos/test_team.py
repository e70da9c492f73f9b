"""Teams: the two-agent games are solved on both paths, and a team of one equals that agent in a team of n, to the bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import registry
from shoal.algos import team
from shoal.algos.dqn import DQN
from shoal.algos.ppo import PPO
from shoal.envs import make
from shoal.errors import ConfigError
from shoal.runtime.cut import on_device
from shoal.runtime.fused import Fused
from shoal.runtime.ported import Ported
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Batch, Limits, Step, Transition, pytree

FOREVER = Limits(2**30, 2**30, float("inf"))


def engine_of(path, agent, env, *, num_envs, lane_envs):
    sizes = {"num_envs": num_envs, "lane_envs": lane_envs}
    return Fused(agent, env, **sizes) if path == "fused" else Ported(agent, env, None, **sizes)


def run(engine, iterations):
    done = 0
    while done < iterations:
        done += len(engine.run(FOREVER._replace(iterations=iterations - done)).iterations)


# game → settings, number of iterations, the score to reach
GAMES = {
    "matrix_game": (PPO(num_steps=20, num_epochs=4, num_minibatches=2, learning_rate=3e-3, hidden=(16,), init_scheme="xavier"),
                    40, lambda env: 0.95 * env.optimum),
    "rendezvous": (PPO(num_steps=32, num_epochs=4, num_minibatches=4, learning_rate=5e-3, hidden=(32,), init_scheme="xavier",
                       entropy_coef=0.005), 100, lambda env: 0.9),
}


# every game, kind and path, in pairs: each case compiles for a quarter of a minute and then learns in a tenth of a second
@pytest.mark.parametrize(("game", "kind", "path"), [
    ("matrix_game", "independent", "fused"), pytest.param("matrix_game", "shared", "fused", marks=pytest.mark.slow),
    pytest.param("rendezvous", "independent", "fused", marks=pytest.mark.slow), ("rendezvous", "shared", "fused"),
    pytest.param("matrix_game", "independent", "ported", marks=pytest.mark.slow), ("rendezvous", "shared", "ported"),
])
def test_games_are_solved(game, kind, path):
    agent, iterations, bar = GAMES[game]
    env = make(game)
    engine = engine_of(path, getattr(team, kind)(agent), env, num_envs=16, lane_envs=16)
    engine.init(1)
    run(engine, iterations)
    scores = engine.evaluate(50)
    assert scores.returns.shape == (50, 2)
    assert float(scores.returns.mean()) >= bar(registry.find("env", game)()), scores.returns.mean()


@pytree
class Apart:
    """Agents that share nothing but the clock: each walks on a line of its own and is paid for standing near its mark."""

    num_agents: int = 2

    @property
    def spec(self):
        return EnvSpec("apart", Box((2,)), Discrete(3), num_agents=self.num_agents)

    def _observe(self, place):
        marks = 1.0 + jnp.arange(self.num_agents, dtype=jnp.float32)
        return jnp.stack([place, place - marks], axis=-1)

    def reset(self, key):
        # an agent's start must not depend on how many there are
        place = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i)))(jnp.arange(self.num_agents))
        return (place, jnp.zeros((), jnp.int32)), self._observe(place)

    def step(self, state, action, key):
        place, count = state[0] + 0.5 * (action - 1).astype(jnp.float32), state[1] + 1
        obs = self._observe(place)
        over = jnp.broadcast_to(count >= 6, (self.num_agents,))
        return (place, count), Step(obs, -jnp.abs(obs[:, 1]), jnp.zeros_like(over), over, {})


SMALL = PPO(num_steps=8, num_epochs=2, num_minibatches=2, learning_rate=1e-2, hidden=(16,), init_scheme="xavier",
            normalise_obs=True, normalise_reward=True)


def first_agent(tree):
    return jax.tree.map(lambda x: np.asarray(x)[0], tree)


def assert_same_bits(a, b):
    assert len(jax.tree.leaves(a)) == len(jax.tree.leaves(b)) > 10
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_one_update_of_a_team_of_one_equals_that_agent_in_a_team_of_n():
    draw = np.random.default_rng(0)
    size, num = (8, 12), 3
    ended = draw.random((*size, num)) < 0.2
    normal = lambda *shape: draw.normal(size=shape).astype(np.float32)
    whole = Transition(normal(*size, num, 2), draw.integers(0, 3, (*size, num)).astype(np.int32), normal(*size, num),
                       1 - ended.astype(np.float32), normal(*size, num, 2), ended,
                       (draw.random((*size, num)) < 0.9).astype(np.float32), ())
    agent = on_device(team.independent(SMALL))
    update = jax.jit(lambda a, s, data, key: a.update(s, Batch(data, (), a.policy(s), 96), key).state)
    init = jax.jit(lambda a, spec, key: a.init(spec, key), static_argnums=1)
    states = {}
    for n in (1, 2, 3):
        state = init(agent, Apart(n).spec, jax.random.key(4))
        part = jax.tree.map(lambda x, n=n: x[:, :, :n], whole)
        states[n] = update(agent, update(agent, state, part, jax.random.key(5)), part, jax.random.key(6))
    alone = first_agent(states[1])
    assert_same_bits(alone, first_agent(states[2]))
    assert_same_bits(alone, first_agent(states[3]))
    second = jax.tree.map(lambda x: np.asarray(x)[1], states[2])
    assert_same_bits(second, jax.tree.map(lambda x: np.asarray(x)[1], states[3]))
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(second), strict=True))


@pytest.mark.parametrize("path", ["fused", pytest.param("ported", marks=pytest.mark.slow)])
def test_a_whole_run_alone_equals_the_run_in_company(path):
    learned = {}
    for n in (1, 2):
        engine = engine_of(path, team.independent(SMALL), Apart(n), num_envs=8, lane_envs=4)
        engine.init(3)
        start = {name: x[0] for name, x in engine.learner().items()}
        run(engine, 4)
        learned[n] = {name: x[0] for name, x in engine.learner().items()}
        assert any((start[name] != learned[n][name]).any() for name in start)
    assert_same_bits(learned[1], learned[2])


@pytest.mark.parametrize("kind", ["independent", "shared"])
def test_replay_is_refused_by_name(kind):
    with pytest.raises(ConfigError, match="team: DQN learns from replay"):
        getattr(team, kind)(DQN()).buffer(make("rendezvous").spec)
