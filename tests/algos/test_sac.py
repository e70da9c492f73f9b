"""SAC's update and acting, number by number: critics that are straight lines make every target one that can be worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import lane, loops, registry
from shoal.algos import off_policy
from shoal.algos.sac import SAC
from shoal.errors import ConfigError
from shoal.ops import blocks, dists
from shoal.runtime.cut import on_device
from shoal.specs import MASK, Box, Discrete, EnvSpec, Group
from shoal.testing import check_algorithm
from shoal.testing.probes import ContinuousProbe
from shoal.types import Batch, Transition

BOX = EnvSpec("box", Box((3,)), Box((1,), -1.0, 1.0))
CHOICE = EnvSpec("choice", Group((("x", Box((3,))), (MASK, Box((4,), 0.0, 1.0)))), Discrete(4))
KEY = jax.random.key(0)
RATE = 0.01
# plain steps and no hidden layers: what one update does to a weight is its gradient
BASE = on_device(SAC(hidden=(), optimiser="sgd", learning_rate=RATE, discount=0.5, tau=0.25, temperature=0.2))
update = jax.jit(lambda algorithm, state, batch, key: algorithm.update(state, batch, key))
act = jax.jit(lambda algorithm, params, obs, role, noise: algorithm.act(params, (), obs, role, noise).action)


def agent(**changed):
    return on_device(dataclasses.replace(BASE, **changed))


def lines(module, weights, biases):
    """Both critics, or the policy, as straight lines: ``weights`` for each input, alike for every output."""
    layer = lambda m: (m.arrays if hasattr(m, "arrays") else m.stacked.net.arrays if hasattr(m.stacked, "net")
                       else m.stacked.torso.arrays).layers[0]
    old = layer(module)
    weight = jnp.broadcast_to(jnp.asarray(weights, jnp.float32), old.weight.swapaxes(-1, -2).shape).swapaxes(-1, -2)
    new = (weight, jnp.broadcast_to(jnp.asarray(biases, jnp.float32), old.bias.shape))
    return eqx.tree_at(lambda m: (layer(m).weight, layer(m).bias), module, new)


def flat_state(spec=BOX, algorithm=BASE, targets=(3.0, 5.0)):
    """Critics and policy answer 0 everywhere, the target critics a constant each."""
    state = algorithm.init(spec, KEY)
    actor = eqx.tree_at(lambda a: a.net, state.actor, lines(state.actor.net, 0.0, 0.0))
    return state._replace(actor=actor, critics=lines(state.critics, 0.0, 0.0),
                          targets=lines(state.targets, 0.0, np.asarray(targets)[:, None]))


def rows(num=64, spec=BOX, **changed):
    draw = np.random.default_rng(0)
    x = [draw.normal(size=(num, 3)).astype(np.float32) for _ in range(2)]
    obs = x if spec is BOX else [{"x": y, MASK: np.ones((num, 4), np.float32)} for y in x]
    action = draw.uniform(-1, 1, (num, 1)).astype(np.float32) if spec is BOX else draw.integers(0, 4, num).astype(np.int32)
    data = Transition(obs[0], action, draw.normal(size=num).astype(np.float32), np.ones(num, np.float32), obs[1], np.zeros(num, bool),
                      np.ones(num, np.float32), ())
    return data._replace(**changed)


def batch(data, weight=1.0):
    return Batch(data, (), (), 1.0, jnp.broadcast_to(jnp.asarray(weight, jnp.float32), data.reward.shape))


def same(one, other):
    return all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


# the distribution ------------------------------------------------------------------------------------------------------


def test_sampled_log_probability_is_that_of_the_action_and_exact_at_the_edge():
    dist = dists.SquashedGaussian(jnp.array([[0.3, -0.4]]), jnp.array([[-0.5, -1.0]]))
    action, log_prob = dist.sample_with_log_prob(jnp.array([[0.7, -1.1]]))
    np.testing.assert_allclose(log_prob, dist.log_prob(action), rtol=1e-5)
    far = dists.SquashedGaussian(jnp.array([[20.0]]), jnp.zeros((1, 1)))
    # log(1 - tanh² 20) = 2 (log 2 - 20), to the last bit; tanh 20 itself is 1 in float32
    np.testing.assert_allclose(far.sample_with_log_prob(jnp.zeros((1, 1)))[1], -0.5 * math.log(2 * math.pi) + 2 * (20 - math.log(2)),
                               rtol=1e-6)


# targets and gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize("targets", [(3.0, 5.0), (5.0, 3.0)])
def test_targets_take_the_smaller_critic_and_end_with_the_episode(spec, targets):
    alive = np.arange(64) % 2
    data = rows(spec=spec, alive=alive.astype(np.float32))
    cold = agent(auto_temperature=False, temperature=0.0)
    done = update(cold, flat_state(spec, targets=targets), batch(data), KEY)
    np.testing.assert_allclose(done.priorities, np.abs(data.reward + 0.5 * alive * 3.0), rtol=1e-5)  # critics answer 0
    np.testing.assert_allclose(done.metrics["value_loss"], ((data.reward + 1.5 * alive) ** 2).mean(), rtol=1e-5)  # ½ of each of two


def test_targets_are_paid_for_entropy():
    """Choices: log 4 for four that are alike. Continuous: that of a squashed standard normal, here by quadrature."""
    price, nothing = 0.2, np.zeros(4096, np.float32)
    fixed = agent(auto_temperature=False, temperature=price)
    choice = update(fixed, flat_state(CHOICE, targets=(0, 0)), batch(rows(4096, CHOICE, reward=nothing)), KEY)
    np.testing.assert_allclose(choice.priorities, 0.5 * price * math.log(4), rtol=1e-5)
    x = np.linspace(-9, 9, 200_001)
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    entropy = 0.5 * math.log(2 * math.pi * math.e) + (density * np.log(1 - np.tanh(x) ** 2)).sum() * (x[1] - x[0])
    box = update(fixed, flat_state(targets=(0, 0)), batch(rows(4096, reward=nothing)), KEY)
    assert abs(float(box.metrics["entropy"]) - entropy) < 0.05
    # the critics' biases move by the mean target: its entropy is that of other actions, at the successor
    moved = np.asarray(box.state.critics.stacked.net.arrays.layers[0].bias)
    np.testing.assert_allclose(moved, RATE * 0.5 * price * entropy, rtol=0.05)


def test_temperature_follows_the_entropy_that_is_wanted():
    state = flat_state()
    for wanted, sign in ((-1.0, -1), (1.0, 1)):  # the policy's own is about 0.5
        done = update(agent(target_entropy=wanted), state, batch(rows()), KEY)
        step = -RATE * (float(done.metrics["entropy"]) - wanted)
        np.testing.assert_allclose(done.state.log_temperature - state.log_temperature, step, rtol=1e-3)
        assert np.sign(step) == sign
    fixed = update(agent(auto_temperature=False, temperature=0.7), state, batch(rows()), KEY)
    assert float(fixed.metrics["temperature"]) == np.float32(0.7)


def test_choices_want_a_share_of_the_entropy_that_a_mask_leaves():
    mask = np.tile(np.array([1, 1, 0, 0], np.float32), (64, 1))
    data = rows(spec=CHOICE)
    data = data._replace(obs={**data.obs, MASK: mask}, action=data.action % 2)
    done = update(agent(target_entropy_share=0.5), flat_state(CHOICE), batch(data), KEY)
    np.testing.assert_allclose(done.metrics["entropy"], math.log(2), rtol=1e-5)
    np.testing.assert_allclose(done.state.log_temperature - math.log(0.2), -RATE * 0.5 * math.log(2), rtol=1e-3)


def test_policy_climbs_the_smaller_critic():
    """Both critics rise with the action, the second, much lower, with twice the slope: the mean's bias moves by the second's slope."""
    cold, state = agent(auto_temperature=False, temperature=0.0), flat_state()
    weights = np.zeros((2, 1, 4), np.float32)
    weights[:, 0, 3] = 1.0, 2.0
    state = state._replace(critics=lines(state.critics, weights, [[0.0], [-9.0]]))
    done = update(cold, state, batch(rows(4096)), KEY)
    bias = np.asarray(done.state.actor.net.arrays.layers[0].bias)
    spread = np.tanh(np.random.default_rng(1).normal(size=100_000))
    np.testing.assert_allclose(bias[0] / RATE, 2.0 * (1 - spread**2).mean(), rtol=0.05)


def test_choices_climb_too():
    cold, state = agent(auto_temperature=False, temperature=0.0), flat_state(CHOICE)
    biases = np.zeros((2, 4), np.float32)
    biases[:, 2] = 4.0
    done = update(cold, state._replace(critics=lines(state.critics, 0.0, biases)), batch(rows(spec=CHOICE)), KEY)
    # d/dlogit of Σ π Q at π = ¼: ¼ (Q - mean Q)
    np.testing.assert_allclose(np.asarray(done.state.actor.net.arrays.layers[0].bias) / RATE, 0.25 * (biases[0] - 1.0), rtol=1e-4)


def test_target_critics_follow_by_their_share():
    state = flat_state()
    after = update(BASE, state, batch(rows()), KEY).state
    old, new, mixed = (np.asarray(c.stacked.net.arrays.layers[0].bias) for c in (state.targets, after.critics, after.targets))
    np.testing.assert_allclose(mixed, 0.75 * old + 0.25 * new, rtol=1e-6)
    assert int(after.updates) == 1


def test_rows_that_do_not_count():
    """Rows that are not valid change nothing; a weight of 0 takes a row from the critics only."""
    state, half = flat_state(), (np.arange(64) < 32).astype(np.float32)
    data = rows(valid=half)
    spoilt = data._replace(reward=np.where(half > 0, data.reward, 7.0).astype(np.float32))
    assert same(update(BASE, state, batch(data), KEY).state, update(BASE, state, batch(spoilt), KEY).state)
    heavy, none = (update(BASE, state, batch(rows(), weight), KEY).state for weight in (1.0, 0.0))
    assert same(none.critics, state.critics) and not same(heavy.critics, state.critics)
    assert same(none.actor.net, heavy.actor.net) and not same(none.actor.net, state.actor.net)


def test_large_batches_in_blocks_are_means_of_their_rows():
    """Choices draw nothing, so a batch twice over is the batch; priorities come in its order."""
    state, data = BASE.init(CHOICE, KEY), rows(blocks.BLOCK_ROWS, CHOICE)
    twice = jax.tree.map(lambda x: np.concatenate([x, x]), data)
    one, two = (update(BASE, state, batch(given), KEY) for given in (data, twice))
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(two.priorities, np.tile(one.priorities, 2), rtol=1e-5)


# acting ------------------------------------------------------------------------------------------------------------------


def test_actions_are_anywhere_until_the_first_update():
    state, num = flat_state(), 4096
    obs, noise = np.zeros((num, 3), np.float32), BASE.draw(BOX, KEY, (num,))
    first = np.asarray(act(BASE, BASE.policy(state), obs, lane.role(0.0, num), noise))
    assert -1 <= first.min() < -0.99 < 0.99 < first.max() <= 1
    np.testing.assert_allclose(np.histogram(first, 8, (-1, 1))[0], num / 8, rtol=0.2)
    learned = update(BASE, state, batch(rows()), KEY).state
    later = np.asarray(act(BASE, BASE.policy(learned), obs, lane.role(0.0, num), noise))
    np.testing.assert_allclose(later.std(), 0.628, atol=0.02)  # of a squashed standard normal
    for params in (state.actor, learned.actor):
        greedy = np.asarray(act(BASE, params, obs, lane.role(0.0, num, greedy=True), noise))
        np.testing.assert_allclose(greedy, np.tanh(params.net(obs)[:, :1]), atol=1e-6)
    cold = agent(warm_up=False)
    assert float(cold.init(BOX, KEY).actor.fresh) == 0.0 and "anywhere" not in cold.draw(BOX, KEY, (2,))


def test_choices_at_random_are_even_and_keep_to_the_mask():
    num, mask = 4096, np.array([1, 0, 1, 1], np.float32)
    state = BASE.init(CHOICE, KEY)
    state = state._replace(actor=eqx.tree_at(lambda a: a.net, state.actor, lines(state.actor.net, 0.0, [9.0, 20.0, 0.0, 0.0])))
    obs = {"x": np.zeros((num, 3), np.float32), MASK: np.tile(mask, (num, 1))}
    noise = BASE.draw(CHOICE, KEY, (num,))
    counts = np.bincount(act(BASE, state.actor, obs, lane.role(0.0, num), noise), minlength=4)
    np.testing.assert_allclose(counts, np.array([1, 0, 1, 1]) * num / 3, rtol=0.1)
    greedy = act(BASE, state.actor, obs, lane.role(0.0, num, greedy=True), noise)
    assert (np.asarray(greedy) == 0).all()


def test_state_dependent_noise_is_kept_and_has_its_spread():
    noisy = agent(hidden=(4,), state_noise=True, log_std=-1.0, warm_up=False)
    state = noisy.init(BOX, KEY)
    draws = noisy.draw(BOX, KEY, (3, 2048))
    assert (np.asarray(draws["own"][0]) == np.asarray(draws["own"][2])).all()
    obs = np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (2048, 1))
    steps = [np.asarray(act(noisy, state.actor, obs, lane.role(0.0, 2048), jax.tree.map(lambda x, t=t: x[t], draws))) for t in (0, 1)]
    assert (steps[0] == steps[1]).all()
    normal = state.actor.squashed(jnp.asarray(obs[:1]))
    np.testing.assert_allclose(np.arctanh(steps[0]).std(), np.exp(normal.log_std)[0, 0], rtol=0.06)
    after = update(noisy, state, batch(rows()), KEY).state
    assert not same(after.actor.log_std, state.actor.log_std)


def test_actions_are_in_the_units_of_their_box():
    space = Box((2, 1), (-2.0, 0.0), (6.0, 1.0))
    inside = jnp.array([[-1.0, 0.5], [1.0, -1.0]])
    np.testing.assert_allclose(off_policy.to_box(space, inside), [[[-2], [0.75]], [[6], [0]]])
    np.testing.assert_allclose(off_policy.from_box(space, off_policy.to_box(space, inside)), inside, atol=1e-6)
    spec = EnvSpec("wide", Box((3,)), space)
    done = act(BASE, BASE.init(spec, KEY).actor, np.zeros((512, 3), np.float32), lane.role(0.0, 512), BASE.draw(spec, KEY, (512,)))
    low, high = np.asarray(done).min(0).ravel(), np.asarray(done).max(0).ravel()
    np.testing.assert_allclose([low, high], [[-2, 0], [6, 1]], atol=0.1)


@pytest.mark.parametrize("space", [Box((1,)), Box((1,), 0.0)])
def test_actions_without_bounds_are_refused(space):
    with pytest.raises(ConfigError, match="'open'.*SAC expects actions.*between bounds"):
        BASE.init(EnvSpec("open", Box((3,)), space), KEY)


@pytest.mark.parametrize("env_fn", [None, ContinuousProbe], ids=["choice", "box"])
def test_sac_keeps_an_algorithms_side(env_fn):
    findings = check_algorithm(SAC(num_steps=2, hidden=(8,)), env_fn=env_fn, kinds=(), num_envs=4, must=True)
    assert findings and registry.find("algo", "sac") is SAC


# refusing ----------------------------------------------------------------------------------------------------------------


def test_each_half_is_refused_by_itself_and_wrong_data_by_both():
    state, learn = flat_state(), jax.jit(loops.learn)

    def learned(**changed):
        after, metrics, _ = learn(BASE, state, batch(rows(**changed)), KEY)
        names = {name for name in state._fields if not same(getattr(after, name), getattr(state, name))}
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))
        return names, float(metrics["refused"])

    policy, values = {"actor", "log_temperature"}, {"critics", "targets", "updates"}  # plain steps have no state
    assert learned() == (policy | values, 0.0)
    assert learned(reward=np.full(64, 3e38, np.float32)) == (policy, 1.0)  # finite, but not its square
    for wrong in (np.nan, np.inf):
        assert learned(reward=np.full(64, wrong, np.float32)) == (set(), 1.0)
