"""``check_algorithm`` passes what is sound and names what is not. The planted ones are heirs of one small sound algorithm."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.buffers.rollout import Rollout
from shoal.errors import ConfigError
from shoal.testing import Finding, NonConforming, check_algorithm
from shoal.testing.probes import Kind
from shoal.types import Acted, Updated, pytree

BASIC = {"pytree", "init", "act", "action_space", "greedy", "update", "learns", "pure", "non_finite", "recompile"}
ITERATIONS = 60


class State(NamedTuple):
    policy: Any  # [3, 2]
    value: Any  # [3]


def features(obs):
    return jnp.concatenate([obs, jnp.ones((*obs.shape[:-1], 1))], axis=-1)


class Linear:
    """A linear actor-critic: enough for the probes, whose answers are linear in what they show."""

    def init(self, spec, key):
        return State(0.01 * jax.random.normal(key, (3, 2)), jnp.zeros(3))

    def buffer(self, spec):
        return Rollout()

    def memory(self, spec, batch):
        return ()

    def draw(self, spec, key, shape):
        return jax.random.gumbel(key, (*shape, 2))

    def policy(self, state):
        return state.policy

    def act(self, params, memory, obs, role, noise):
        explore = self.explore(role)[..., None]
        return Acted(jnp.argmax(features(obs) @ params + explore * noise, axis=-1).astype(jnp.int32), memory, ())

    def explore(self, role):
        return 1.0 - role.greedy

    def update(self, state, batch, key):
        data, x, following = batch.data, features(batch.data.obs), features(batch.data.next_obs)
        alive = jnp.where(data.last, data.alive * self.beyond_limits, data.alive)

        def error(value, target_value):
            return data.reward + self.discount * alive * (following @ target_value) - x @ value

        def fit(_, value):
            return value + self.learning_rate * jnp.mean(error(value, value)[..., None] * x, axis=(0, 1))

        value = jax.lax.fori_loop(0, 20, fit, state.value)
        advantage = error(state.value, state.value)

        def gain(policy):
            logits = jax.nn.log_softmax(x @ policy)
            return jnp.mean(advantage * jnp.take_along_axis(logits, data.action[..., None], axis=-1)[..., 0])

        policy = state.policy + self.towards * jax.grad(gain)(state.policy)
        return Updated(State(policy, value), {"error": jnp.mean(advantage**2)}, None)


@pytree
class Sound(Linear):
    num_steps: int = 10
    learning_rate: float = 0.3
    discount: float = 0.8
    towards: float = 5.0
    """The step of the policy; negative: away from what pays."""
    beyond_limits: float = 1.0
    """0: an episode that was cut is taken for one that ended."""


def values(state, obs):
    return features(obs) @ state.value


def failed(findings: list[Finding]) -> set[str]:
    return {f.check for f in findings if not f.ok}


def told(findings: list[Finding]) -> list[str]:
    return [f"{f.check}: {f.detail}" for f in findings if not f.ok]


def test_a_sound_one_conforms_on_both_paths():
    findings = check_algorithm(Sound(), value_fn=values, iterations=ITERATIONS, paths=("fused",))
    assert not failed(findings), told(findings)
    assert {f.check for f in findings} == BASIC | {f"{kind.name.lower()} (fused)" for kind in list(Kind)[:6]}
    kinds = (Kind.BOTH, Kind.TRUNCATION)
    findings = check_algorithm(Sound(), value_fn=values, iterations=ITERATIONS, kinds=kinds, paths=("ported",), seeds=(0,))
    assert not failed(findings), told(findings)
    assert {f.check for f in findings} == BASIC | {"both (ported)", "truncation (ported)"}


def test_a_limit_taken_for_an_end_is_found():
    findings = check_algorithm(Sound(beyond_limits=0.0), value_fn=values, iterations=ITERATIONS, paths=("fused",))
    assert failed(findings) == {"truncation (fused)"}
    (fault,) = [f for f in findings if not f.ok]
    assert "expected 5" in fault.detail and fault.consequence
    assert 2 < float(fault.detail.split("value ")[1].split()[0]) < 4.5  # V = 1 + 0.8·0.8·V is 2.8


def test_learning_the_wrong_way_is_found_without_values():
    """No value_fn: the probes about actions are judged, the others not."""
    findings = check_algorithm(Sound(towards=-5.0), iterations=ITERATIONS, paths=("ported",), seeds=(0,))
    assert failed(findings) == {"action (ported)", "both (ported)"}
    assert {f.check for f in findings} == BASIC | failed(findings)


@pytree
class OutOfRange(Sound):
    def act(self, params, memory, obs, role, noise):
        acted = super().act(params, memory, obs, role, noise)
        return acted._replace(action=acted.action + 1)


@pytree
class WrongShape(OutOfRange):
    def act(self, params, memory, obs, role, noise):
        return Acted(jnp.zeros((*obs.shape[:-1], 1), jnp.int32), memory, ())


@pytree
class NeverGreedy(Sound):
    def explore(self, role):
        return jnp.ones_like(role.greedy)


@pytree
class FixedRate(Linear):
    num_steps: int = 10
    learning_rate: int = 0.3  # the mistake: an int is part of the program
    discount: float = 0.8
    towards: float = 5.0
    beyond_limits: float = 1.0


@pytree
class Grows(Sound):
    def update(self, state, batch, key):
        updated = super().update(state, batch, key)
        return updated._replace(state=updated.state._replace(value=updated.state.value.astype(jnp.float16)))


@pytree
class VectorMetric(Sound):
    def update(self, state, batch, key):
        return super().update(state, batch, key)._replace(metrics={"error": batch.data.reward[0]})


@pytree
class Counts(Sound):
    calls: ClassVar[list] = []

    def update(self, state, batch, key):
        self.calls.append(0)
        updated = super().update(state, batch, key)
        return updated._replace(state=updated.state._replace(value=updated.state.value + len(self.calls)))


@pytree
class Draws(Sound):
    def init(self, spec, key):
        return State(jnp.asarray(np.random.normal(size=(3, 2)), jnp.float32), jnp.zeros(3))


@pytree
class StartsBroken(Sound):
    def init(self, spec, key):
        return State(jnp.full((3, 2), jnp.nan), jnp.zeros(3))


@pytree
class Idle(Sound):
    def update(self, state, batch, key):
        return Updated(state, {}, None)


@pytree
class Raises(Sound):
    def update(self, state, batch, key):
        raise ValueError("no idea")


class Plain(Linear):
    num_steps = 4


PLANTED = {OutOfRange: {"action_space"}, WrongShape: {"act"}, NeverGreedy: {"greedy"}, FixedRate: {"recompile"},
           Grows: {"update"}, VectorMetric: {"update"}, Raises: {"update"}, Counts: {"pure"}, Draws: {"pure"},
           StartsBroken: {"init"}, Idle: {"learns"}, Plain: {"pytree"}}


@pytest.mark.parametrize("cls", PLANTED, ids=lambda cls: cls.__name__)
def test_a_planted_defect_is_found_by_its_check_and_no_other(cls):
    findings = check_algorithm(cls(), value_fn=values, discount=0.8)
    broken = failed(findings)
    assert broken == PLANTED[cls], told(findings)
    assert not any("(" in f.check for f in findings), "probes are left out where something basic fails"


def test_classes_that_look_alike_are_never_taken_for_each_other():
    """jit keeps programs by structure; one that leaves the class out runs, now and then, the program of another."""
    def one(number: int) -> Any:
        @pytree
        class Alike:
            num_steps: int = 4
            scale: float = 1.0

            def answer(self):
                return self.scale * number

        return Alike()

    ask = jax.jit(lambda alike: alike.answer())
    alike = [one(number) for number in range(12)]
    first, *others = map(jax.tree.structure, alike)
    assert all(first != other for other in others) and first == jax.tree.structure(alike[0])
    assert [float(ask(each)) for each in alike] == list(range(12))


def test_must_raises():
    with pytest.raises(NonConforming, match="Plain does not conform\npytree: Plain is not a pytree"):
        check_algorithm(Plain(), must=True)


@pytest.mark.parametrize(("algorithm", "options", "text"), [
    (Sound, {}, "got the class Sound"),
    (Sound(), {"paths": ("fast",)}, "expected fused or ported"),
    (Sound(), {"num_envs": 6, "lane_envs": 4}, "multiple of a lane"),
    (Sound(discount=1.0), {"value_fn": values}, "discount = 1.0"),
])
def test_what_cannot_be_checked_is_refused(algorithm, options, text):
    with pytest.raises(ConfigError, match=text):
        check_algorithm(algorithm, **options)
