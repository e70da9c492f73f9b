"""All that is decided before the first step: which world, how large a table, which kernels. Whoever is told the plan comes to the same."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal import registry
from shoal.errors import ConfigError
from shoal.specs import MASK, Group
from shoal.tabular import bound, compiled, discrete, model, vector
from shoal.tabular.learner import TableLearner
from shoal.tabular.sparse import FIRST_ROWS, Seen
from shoal.tabular.rule import DOUBLE, ONE_STEP, SWEEPING, At, Kind, Rule, World, layout, sizes

MODEL, GAME, HOST = "model", "game", "host"
_LINE = 64  # bytes
_FEW = 8  # actions that a loop over them is written out for
_EVEN = 12  # outcomes that a pair may be given so that all are as likely


class Setup(NamedTuple):
    """A lane and its world, for any lane of a run."""

    learner: TableLearner
    kind: Kind
    rule: Rule
    at: At
    table: str  # list, numpy or compiled
    mode: str  # MODEL, GAME or HOST
    world: World
    wf: np.ndarray
    wi: np.ndarray
    legal: np.ndarray  # [cells] uint8, or [1] where everything may be done
    seed: int
    num_lanes: int
    lane_envs: int
    make_fn: Callable[[], Any] | None  # HOST: a new environment
    rows: Any  # HOST: discrete.Rows
    choices: Any  # HOST: discrete.Choices
    source: Any  # the Model or Game itself

    @property
    def num_envs(self) -> int:
        return self.num_lanes * self.lane_envs

    @property
    def num_rows(self) -> int:
        return self.rule.cells // self.rule.num_actions

    @property
    def tables(self) -> int:
        return 2 if self.learner.target == DOUBLE else 1

    @property
    def is_alone(self) -> bool:
        """One environment that learns by one step: what ``hot`` has a loop for."""
        return self.lane_envs == 1 and self.kind.family == ONE_STEP

    def kernels(self) -> types.SimpleNamespace:
        kind = self.kind
        if self.mode == MODEL and self.is_alone:  # compiled for this world's size
            own = np.array_equal(self.source.row, np.arange(self.num_rows))
            kind = kind._replace(actions=self.rule.num_actions if self.rule.num_actions <= _FEW else 0, own_rows=int(own))
        return {"list": bound.plain, "numpy": vector.load, "compiled": compiled.load}[self.table](kind)

    def blank(self) -> tuple[np.ndarray, np.ndarray]:
        """The table and its counters before anything is learned."""
        cells = self.rule.cells * self.tables
        return aligned(np.full(cells, self.learner.initial_value, np.float64)), aligned(np.zeros(cells, np.int64))


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy [cells] that begins where a line of the cache does: else a row of four pairs may lie in two, a fifth slower to walk on."""
    room = np.empty(x.nbytes + _LINE, np.uint8)
    start = -room.__array_interface__["data"][0] % _LINE
    out = room[start:start + x.nbytes].view(x.dtype)
    out[:] = x
    return out


def open_setup(learner: TableLearner, plan: Any, make_fn: Callable[[], Any], *, free_bytes: int | None = None) -> Setup:
    """Everything for the lanes of a plan; what cannot be is refused. ``make_fn`` makes its environment, where a model does not do."""
    source = None if plan.path == "ported" else known(plan, make_fn)
    if source is None and plan.path == "fused":
        raise ConfigError(f"path = 'fused': no model of {plan.env!r} is known, so it cannot be compiled in; use --path ported")
    if isinstance(source, model.Game):
        mode, num_rows, num_actions, legal = GAME, source.after.shape[0], source.after.shape[1], source.legal
        world, wf, wi = _game_arrays(source)
    elif source is not None:
        mode, num_rows, num_actions, legal = MODEL, source.num_rows, source.after.shape[1], source.legal
        world, wf, wi = _model_arrays(source)
    else:
        mode, legal, (world, wf, wi) = HOST, None, _nothing()
    rows: Any = None
    choices: Any = None
    if mode == HOST:
        spec = _spec(plan, make_fn)
        rows = rows_for(learner, spec)
        choices = discrete.actions_of(spec.action)
        num_rows, num_actions = rows.num, choices.num
    if learner.sparse:
        rows, num_rows = _sparse(learner, plan, mode, rows)
    discrete.fits(num_rows, num_actions, (free() if free_bytes is None else free_bytes) // max(1, tables_held(plan)))
    lane_envs = plan.lane_envs or plan.num_envs
    num_lanes = plan.num_envs // lane_envs
    masked = legal is not None or (mode == HOST and isinstance(spec.obs, Group) and MASK in spec.obs)
    kind, rule = learner.kind(masked), _rule(learner, plan, mode, num_rows, num_actions, lane_envs, world.limit)
    allowed = np.ones(rule.cells if masked else 1, np.uint8) if legal is None else np.ascontiguousarray(legal, np.uint8).reshape(-1)
    at, _, _ = layout(kind, rule)
    return Setup(learner, kind, rule, at, _table(learner), mode, world, wf, wi, allowed, plan.seed, num_lanes, lane_envs, make_fn, rows,
                 choices, source)


def rows_for(learner: TableLearner, spec: Any) -> discrete.Rows:
    """An environment's observations as rows; one bound does for all numbers."""
    low, high = (bound[0] if len(bound) == 1 else bound or None for bound in (learner.low, learner.high))
    return discrete.rows_of(spec.obs, learner.bins, low, high)


def _sparse(learner: TableLearner, plan: Any, mode: str, rows: Any) -> tuple[Seen, int]:
    """Rows in the order they come, and how many there is room for at first; refused where all are there from the start."""
    if mode != HOST:
        raise ConfigError(f"sparse = true: all states of {plan.env!r} are known beforehand; leave --sparse out, or use --path ported")
    if learner.family == SWEEPING:
        raise ConfigError("sparse = true: the model of dyna_q has a place for every state; use another learner")
    if plan.runtime != "local" or plan.num_envs != (plan.lane_envs or plan.num_envs):
        raise ConfigError("sparse = true: rows are numbered as they come, in one table; leave --runtime and --lane-envs out")
    return Seen(rows), FIRST_ROWS


def known(plan: Any, make_fn: Callable[[], Any]) -> Any:
    """The model or game behind a plan's environment, if it is known and nothing is put before it."""
    if plan.sticky_actions or plan.frame_stack > 1 or plan.flatten_obs:
        return None
    given = plan.env.startswith("object:")
    if given or plan.env in registry.names("env"):
        env = make_fn()
        if hasattr(env, "game"):
            return env.game()
        if given:
            return model.of_object(env)
    return model.of(plan.env, dict(plan.env_options), plan.max_episode_steps)


def _spec(plan: Any, make_fn: Callable[[], Any]) -> Any:
    """What an environment that lives in Python says of itself."""
    env = make_fn()
    if not hasattr(env, "close"):
        raise ConfigError(f"env {plan.env!r} is compiled, and no model of it is known: a table cannot step it; try Gymnasium's, "
                          "such as CartPole-v1, with --bins")
    env.close()
    if env.spec.num_agents:
        raise ConfigError(f"env {plan.env!r} has {env.spec.num_agents} agents: a table has one")
    return env.spec


def _rule(learner: TableLearner, plan: Any, mode: str, num_rows: int, num_actions: int, lane_envs: int, limit: int) -> Rule:
    horizon = learner.horizon if np.isfinite(learner.horizon) else 1.0
    rule = learner.rule(num_rows, num_actions, lane_envs * (2 if mode == GAME else 1), horizon / plan.num_envs)
    if limit and learner.span > limit:
        rule = rule._replace(span=limit)  # no episode is longer
    return rule


def _table(learner: TableLearner) -> str:
    if learner.table != "auto":
        if learner.table == "compiled":
            compiled.check_installed()
        return learner.table
    return "compiled" if compiled.installed() else "numpy"


def tables_held(plan: Any) -> int:
    """Tables that are in memory at once: one for each lane, and the common one."""
    lanes = plan.num_envs // (plan.lane_envs or plan.num_envs)
    return 1 if lanes == 1 else lanes + 1


def free() -> int:
    """Bytes of memory that are free, as far as it can be known."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# arrays of worlds ----------------------------------------------------------------------------------------------------


def _joined(parts: dict[str, np.ndarray], dtype: Any) -> tuple[dict[str, int], np.ndarray]:
    starts, total = {}, 0
    for name, part in parts.items():
        starts[name], total = total, total + part.size
    return starts, np.concatenate([np.ravel(part).astype(dtype) for part in parts.values()])


def _model_arrays(source: model.Model) -> tuple[World, np.ndarray, np.ndarray]:
    """A model flat; where all chances are multiples of one, each outcome is written as often as it is likely."""
    chance, after, reward, over = source.chance, source.after, source.reward, source.over
    chances, even = model.probabilities(source), 0
    for num in range(1, _EVEN + 1):
        times = np.rint(chances * num).astype(np.int64)
        if np.allclose(chances * num, times, rtol=0, atol=1e-9) and (times.sum(-1) == num).all():
            each = np.repeat(np.arange(times.shape[-1])[None].repeat(times.shape[0] * times.shape[1], 0).reshape(-1), times.reshape(-1))
            each, even = each.reshape(*times.shape[:2], num), 1
            after, reward, over = (np.take_along_axis(x, each, -1) for x in (after, reward, over))
            chance = np.broadcast_to(np.arange(1, num + 1) / num, after.shape)
            break
    fs, wf = _joined({"chance": chance, "reward": reward, "start_chance": source.start_chance}, np.float64)
    ws, wi = _joined({"after": after, "over": over, "start": source.start, "row": source.row}, np.int64)
    return World(**fs, **ws, num_starts=len(source.start), outcomes=after.shape[-1], limit=source.limit, even=even), wf, wi


def _game_arrays(game: model.Game) -> tuple[World, np.ndarray, np.ndarray]:
    start = np.array([game.start])
    fs, wf = _joined({"chance": np.zeros(0), "reward": game.reward, "start_chance": np.ones(1)}, np.float64)
    ws, wi = _joined({"after": game.after, "over": game.over, "start": start, "row": np.zeros(0)}, np.int64)
    return World(**fs, **ws, num_starts=1, outcomes=1, limit=game.limit, even=1), wf, wi


def _nothing() -> tuple[World, np.ndarray, np.ndarray]:
    return World(*(0,) * len(World._fields)), np.zeros(1), np.zeros(1, np.int64)


def lane_arrays(setup: Setup, lane: int) -> tuple[np.ndarray, np.ndarray]:
    """A lane at its start: floats and whole numbers."""
    from shoal.tabular import draws
    from shoal.tabular.rule import headed

    rule, at = setup.rule, setup.at
    _, num_floats, num_ints = layout(setup.kind, rule)
    f, i = np.zeros(num_floats), np.zeros(num_ints, np.int64)
    floats, ints = headed(rule, at)
    f[:len(floats)], i[:len(ints)] = floats, ints
    per = rule.envs // setup.lane_envs  # seats of an environment
    keys = [draws.key(setup.seed, 0, (lane * setup.lane_envs + e // per) * per + e % per) for e in range(rule.envs)]
    i[at.key:at.key + rule.envs] = np.array(keys, np.uint64).view(np.int64)
    for name in ("action", *(("cell",) if setup.mode == GAME else ())):
        i[getattr(at, name):getattr(at, name) + rule.envs] = -1
    num = sizes(setup.kind, rule)
    for name in ("link", "head", "stand") if setup.kind.family == SWEEPING else ():
        i[getattr(at, name):getattr(at, name) + num[name]] = -1
    return f, i

