"""The learners: what each learns and by which numbers. How a table is kept, filled and shared is the same for all, and elsewhere."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.errors import ConfigError
from shoal.tabular import rule as r

_EXPLORE = {"epsilon": r.EPSILON, "boltzmann": r.BOLTZMANN, "ucb": r.UCB}
_SCHEDULE = {"constant": r.CONSTANT, "linear": r.LINEAR, "exponential": r.EXPONENTIAL}
TABLES = ("auto", "list", "numpy", "compiled")


@dataclass(frozen=True, kw_only=True)
class TableLearner:
    """What all learners in tables have in common."""

    discount: float = 0.99
    """How much less a reward is worth one step later."""
    learning_rate: float = 0.1
    """How far a pair moves towards what it turned out to be worth."""
    learning_rate_visits: float = 0.0
    """Visits after which a pair's learning rate has halved: rate · v / (v + visits); 0: it stays."""
    exploration: str = "epsilon"
    """How to explore: epsilon (any action, now and then), boltzmann (better ones more often) or ucb (little tried ones)."""
    epsilon_start: float = 1.0
    """epsilon: share of random actions at first."""
    epsilon_end: float = 0.05
    """epsilon: share of random actions in the end."""
    temperature_start: float = 1.0
    """boltzmann: difference of value that counts, at first."""
    temperature_end: float = 0.05
    """boltzmann: difference of value that counts, in the end."""
    epsilon_fraction: float = 0.5
    """Share of the horizon after which exploration has come to its end value."""
    epsilon_schedule: str = "linear"
    """How exploration gets there: constant (stays at its start), linear or exponential."""
    horizon: float = math.inf
    """Steps over which exploration changes; the budget, unless given."""
    ucb_bonus: float = 1.0
    """ucb: what it is worth not to have tried an action."""
    initial_value: float = 0.0
    """What a pair is taken to be worth before it is learned; more than it can be makes the learner try everything."""
    ties: str = "random"
    """Among actions that are worth the same: random, or first."""
    table: str = "auto"
    """How the table is kept: list, numpy or compiled, all to the same bits; auto: the fastest that is installed."""
    sync_every: int = 1000
    """Steps of each environment between two merges of the tables of several lanes."""
    sparse: bool = False
    """Keep only rows that have been seen: for more states than fit into memory."""
    bins: int = 0
    """Parts that each continuous number of an observation is divided into (0: there are none)."""
    low: tuple[float, ...] = ()
    """Least values of continuous numbers, where the environment does not bound them."""
    high: tuple[float, ...] = ()
    """Largest values of continuous numbers, where the environment does not bound them."""

    RANGES: ClassVar[dict] = {
        "discount": (0, 1), "learning_rate": (0, 1), "learning_rate_visits": (0, 1e12), "epsilon_start": (0, 1), "epsilon_end": (0, 1),
        "temperature_start": (1e-6, 1e6), "temperature_end": (1e-6, 1e6), "epsilon_fraction": (0, 1), "horizon": (0, math.inf),
        "ucb_bonus": (0, 1e6), "initial_value": (-1e9, 1e9), "sync_every": (1, 10**9), "bins": (0, 10**6),
    }
    CHOICES: ClassVar[dict] = {
        "exploration": ("epsilon", "boltzmann", "ucb"), "epsilon_schedule": ("constant", "linear", "exponential"),
        "ties": ("random", "first"), "table": ("auto", "list", "numpy", "compiled"),
    }
    family: ClassVar[int] = r.ONE_STEP
    target: ClassVar[int] = r.GREEDY
    runs_on: ClassVar[str] = "tables"  # the method of a runtime that makes its engine

    @property
    def span(self) -> int:
        """Places of memory that an environment needs."""
        return 1

    def kind(self, masked: bool) -> r.Kind:
        """The kind of learning it is."""
        return r.Kind(family=self.family, target=self.target, explore=_EXPLORE[self.exploration], schedule=_SCHEDULE[self.epsilon_schedule],
                      ties=int(self.ties == "random"), masked=int(masked), replacing=int(getattr(self, "traces", "") == "replacing"),
                      by_visits=int(self.learning_rate_visits > 0))

    def rule(self, num_rows: int, num_actions: int, envs: int, horizon: float) -> r.Rule:
        """Its numbers for a table; ``horizon`` in vector steps."""
        start, end = ((self.temperature_start, self.temperature_end) if self.exploration == "boltzmann"
                      else (self.epsilon_start, self.epsilon_end))
        steps = horizon * self.epsilon_fraction
        if self.epsilon_schedule == "exponential" and not (start > 0 and end > 0):
            raise ConfigError(f"epsilon_end = {end}: an exponential schedule never comes to 0; expected more")
        changing = start > 0 and end > 0
        return r.Rule(
            num_actions=num_actions, cells=num_rows * num_actions, envs=envs, span=self.span, sweeps=getattr(self, "planning_steps", 0),
            outcomes=getattr(self, "model_outcomes", 1), discount=self.discount, rate=self.learning_rate,
            rate_visits=self.learning_rate_visits, level_start=start, level_end=end, level_steps=max(steps, 1.0),
            level_log=math.log(end / start) if changing else 0.0, bonus=self.ucb_bonus,
            decay=self.discount * getattr(self, "trace_decay", 0.0), least=getattr(self, "least", 0.0))


@dataclass(frozen=True, kw_only=True)
class QLearning(TableLearner):
    """Q-learning: a pair is worth its reward and the best of what follows (Watkins 1989)."""


@dataclass(frozen=True, kw_only=True)
class Sarsa(TableLearner):
    """SARSA: a pair is worth its reward and what is done next, exploration included (Rummery and Niranjan 1994)."""

    target: ClassVar[int] = r.TAKEN


@dataclass(frozen=True, kw_only=True)
class ExpectedSarsa(TableLearner):
    """Expected SARSA: a pair is worth its reward and the mean of what may be done next (Van Seijen et al. 2009)."""

    target: ClassVar[int] = r.EXPECTED
    CHOICES: ClassVar[dict] = {"exploration": ("epsilon", "boltzmann")}


@dataclass(frozen=True, kw_only=True)
class DoubleQLearning(TableLearner):
    """Double Q-learning: two tables, each valued by the other, so that chance is not taken for worth (Van Hasselt 2010)."""

    target: ClassVar[int] = r.DOUBLE


@dataclass(frozen=True, kw_only=True)
class NStepSarsa(TableLearner):
    """n-step SARSA: a pair is worth its next rewards and what is done after them (Sutton and Barto 2018, chapter 7)."""

    n_steps: int = 4
    """Rewards that a pair is learned from."""
    RANGES: ClassVar[dict] = {"n_steps": (1, 10_000)}
    family: ClassVar[int] = r.N_STEP
    target: ClassVar[int] = r.TAKEN

    @property
    def span(self) -> int:
        return self.n_steps


@dataclass(frozen=True, kw_only=True)
class TraceLearner(TableLearner):
    """What learners with eligibility traces have in common."""

    trace_decay: float = 0.9
    """Lambda: how much of an error reaches one step further back."""
    traces: str = "replacing"
    """What a pair's trace does when it is visited again: replacing (it is 1), or accumulating (it grows by 1)."""
    least: float = 1e-3
    """Traces that are smaller are dropped."""
    RANGES: ClassVar[dict] = {"trace_decay": (0, 1), "least": (1e-9, 1)}
    CHOICES: ClassVar[dict] = {"traces": ("replacing", "accumulating")}
    family: ClassVar[int] = r.TRACES

    @property
    def span(self) -> int:
        decay = self.discount * self.trace_decay
        steps = math.ceil(math.log(self.least) / math.log(decay)) + 1 if 0 < decay < 1 else 1 if decay <= 0 else 10_000
        return max(1, min(steps, 10_000))


@dataclass(frozen=True, kw_only=True)
class QLambda(TraceLearner):
    """Watkins's Q(λ): what came before shares an error, back to the last action that was not the best."""


@dataclass(frozen=True, kw_only=True)
class SarsaLambda(TraceLearner):
    """SARSA(λ): all that came before shares an error, the less the longer ago."""

    target: ClassVar[int] = r.TAKEN


@dataclass(frozen=True, kw_only=True)
class MonteCarlo(TableLearner):
    """Monte-Carlo control: a pair is worth what came after it, to the end of the episode."""

    return_steps: int = 10_000
    """Steps after which an episode that has not ended is learned from, by what the table says of the rest."""
    RANGES: ClassVar[dict] = {"return_steps": (1, 10**7)}
    family: ClassVar[int] = r.RETURNS

    @property
    def span(self) -> int:
        return self.return_steps


@dataclass(frozen=True, kw_only=True)
class DynaQ(TableLearner):
    """Dyna-Q: learn a model, and sweep it, most urgent pairs first (Sutton 1991; Moore and Atkeson 1993)."""

    planning_steps: int = 10
    """Pairs that are set right by the model after every step."""
    model_outcomes: int = 16
    """Outcomes of a pair that the model can hold; others are counted and left out."""
    least: float = 1e-6
    """Changes that are smaller are not followed up."""
    RANGES: ClassVar[dict] = {"planning_steps": (1, 10**6), "model_outcomes": (1, 4096), "least": (0, 1e6)}
    family: ClassVar[int] = r.SWEEPING


def fields_of(learner: TableLearner) -> dict[str, Any]:
    return {f.name: getattr(learner, f.name) for f in dataclasses.fields(learner)}
