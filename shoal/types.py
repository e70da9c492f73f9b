"""The nouns of shoal and the shapes they travel in.

Axes are always ``[T, B, N, ...]``: time, environments, agents. A single-agent world has no N axis.
Nothing here computes; every other room imports this one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, dataclass_transform, runtime_checkable

import jax

if TYPE_CHECKING:
    from shoal.specs import EnvSpec

Array = Any  # a jax or numpy array
Tree = Any  # a pytree of arrays
Key = Any  # a typed jax.random key
Params = Tree
Memory = Tree
Metrics = dict[str, Array]
Fixed = float  # a number that shapes the program: static, where a plain float is data

C = TypeVar("C")
_STATIC = ("int", "bool", "str", "tuple", "Fixed", "EnvSpec")


@dataclass_transform(frozen_default=True, kw_only_default=False)
def pytree(cls: type[C]) -> type[C]:
    """Make ``cls`` a frozen dataclass and a pytree.

    Fields annotated ``int``, ``bool``, ``str``, ``tuple[...]`` or ``Fixed`` are static (part of the compiled program);
    all others (``float``, arrays, nested pytrees) are leaves: data, so that a new value compiles nothing.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    static: list[str] = []
    data: list[str] = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        annotation = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        head = annotation.split("[")[0].strip()
        (static if head in _STATIC else data).append(field.name)

    # not jax.tree_util.register_dataclass: two classes alike in fields and values compare equal there (jax 0.10), and jit then
    # sometimes runs the program of the one for the other
    def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(tree, name) for name in data], tuple(getattr(tree, name) for name in static)

    def flatten_with_keys(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return ([(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in data],
                tuple(getattr(tree, name) for name in static))

    def unflatten(static_values: tuple[Any, ...], values: Any) -> Any:
        return cls(**dict(zip(data, values, strict=True)), **dict(zip(static, static_values, strict=True)))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


class Step(NamedTuple):
    """What an environment answers."""

    obs: Tree  # the true successor, before any reset; a dict may hold "action_mask" and "state"
    reward: Array  # [] or [N] float32
    terminated: Array  # [] or [N] bool: the process ended
    truncated: Array  # [] or [N] bool: we stopped watching
    info: dict[str, Array]  # exactly the keys that spec.info declares


class Transition(NamedTuple):
    """What an actor records, [T, B, ...] or [T, B, N, ...]."""

    obs: Tree
    action: Tree
    reward: Array
    alive: Array  # float32, 0 where terminated, else 1; the discount factor is not in it
    next_obs: Tree  # true successor, even across a reset
    last: Array  # bool, terminated | truncated: cut traces here
    valid: Array  # float32, 0 for padding or a dead agent: weighs every loss and moment
    extras: Tree  # per step, for this algorithm's update


class Episodes(NamedTuple):
    """Episodes that ended in a chunk, in the environment's own reward. [T, B]; entries count where ``ended``."""

    ended: Array  # bool
    returns: Array  # float32 [T, B] or [T, B, N]
    lengths: Array  # int32


class LaneState(NamedTuple):
    """Where a lane of B environments stands: all that is needed to continue it."""

    env: Tree  # environment state, [B, ...]
    obs: Tree  # current observation, [B, ...]
    memory: Memory  # policy memory, [B, ...]
    present: Array  # bool [B] or [B, N]: agents that still take part in the episode
    returns: Array  # float32 [B] or [B, N]: reward so far in the episode
    lengths: Array  # int32 [B]


class Chunk(NamedTuple):
    """The unit that travels from an actor to a learner."""

    lane: int
    life: int
    seq: int
    version: int
    data: Transition
    memory: Memory  # [B, ...] policy memory before the first step; () if none
    after: Any  # LaneState, or a host lane's record where it leaves its process: what a restart continues from
    episodes: Episodes


class Batch(NamedTuple):
    """What one update consumes."""

    data: Transition
    memory: Memory  # policy memory before the first step
    behaviour: Params  # the policy that made ``data``: log-probabilities are recomputed from it, not shipped
    steps: float  # environment steps for one update: what schedules count
    weight: Array = 1.0  # [B] how much each row counts, where they were not drawn alike


class Role(NamedTuple):
    """Who is asking; data, so that one compiled act serves every lane and the evaluator."""

    rank: Array  # float32 [B]: this lane's place among the lanes, in [0, 1)
    greedy: Array  # float32 [B]: 1 acts greedily, 0 explores


class Acted(NamedTuple):
    action: Tree
    memory: Memory
    extras: Tree


class Updated(NamedTuple):
    state: Tree
    metrics: Metrics
    priorities: Array | None


class Half(NamedTuple):
    """What one half of an update answers: the fields of the state that it changes, by name."""

    fields: dict[str, Tree]
    metrics: Metrics
    priorities: Array | None


class Sample(NamedTuple):
    batch: Any
    weight: Array
    ticket: Array


class Env(Protocol):
    """A pure, jit-able environment; itself a pytree, so that its parameters are data."""

    @property
    def spec(self) -> EnvSpec: ...
    def reset(self, key: Key) -> tuple[Tree, Tree]: ...
    def step(self, state: Tree, action: Tree, key: Key) -> tuple[Tree, Step]: ...


@runtime_checkable
class HostEnv(Protocol):
    """The stateful twin, for worlds that live in Python. It may also have ``get_state`` and ``set_state``."""

    spec: EnvSpec

    def reset(self, seed: int) -> Tree: ...
    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]: ...
    def close(self) -> None: ...


class Algorithm(Protocol):
    """Pure functions over a frozen record of hyper-parameters. See ``shoal/algos/ppo.py`` for the model.

    ``draw`` makes, from one key, all the noise a chunk of acting will use (one call instead of one per step);
    ``act`` receives one step of it.
    """

    num_steps: int  # chunk length

    def init(self, spec: EnvSpec, key: Key) -> Tree: ...
    def buffer(self, spec: EnvSpec) -> Buffer: ...
    def memory(self, spec: EnvSpec, batch: int) -> Memory: ...
    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Tree: ...
    def policy(self, state: Tree) -> Params: ...
    def act(self, params: Params, memory: Memory, obs: Tree, role: Role, noise: Tree) -> Acted: ...
    def update(self, state: Tree, batch: Batch, key: Key) -> Updated: ...


class Gradient(Protocol):
    """What the server topology and several learners need besides: an update in two halves."""

    def gradient(self, state: Tree, batch: Batch, key: Key) -> tuple[Tree, Tree]: ...
    def apply(self, state: Tree, grads: Tree, aux: Tree) -> Updated: ...


class Halves(Protocol):
    """What lets policy and values learn side by side: an update of two halves that read the same state and change different fields of it.

    ``update`` is both. The next policy is all in what the first one changes.
    """

    def update_policy(self, state: Any, batch: Batch, key: Key) -> Half: ...
    def update_values(self, state: Any, batch: Batch, key: Key) -> Half: ...


class Buffer(Protocol):
    """A pure index over rows in a store. ``add`` takes one lane's chunk, or every lane's side by side where ``lane`` is None."""

    @property
    def apart(self) -> bool: ...  # its rows do not lie on the device, and compiled code cannot hold it
    def check(self, spec: EnvSpec, num_envs: int, lanes: int, num_steps: int) -> Any: ...  # refuses what cannot work or fit
    def init(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> Tree: ...
    def add(self, state: Tree, lane: Any, data: Any) -> Tree: ...
    def sample(self, state: Tree, key: Key) -> tuple[Tree, Sample]: ...
    def update(self, state: Tree, ticket: Any, priorities: Array) -> Tree: ...
    def interrupt(self, state: Tree, lane: Any) -> Tree: ...  # the lane's next chunk will not follow its last one
    def ready(self, state: Tree) -> Array: ...
    def metrics(self, state: Tree) -> Metrics: ...  # what it holds, and what it could not keep
    def pace(self, rows: int) -> tuple[int, int]: ...  # updates, and the environment steps they are for; ``rows``: of an iteration


class Scores(NamedTuple):
    """Evaluation episodes, one entry each, in the environment's own reward."""

    returns: Array  # [E] or [E, N]
    lengths: Array  # [E]
    success: Array  # [E]: the environment's own "success" at the end, nan where it declares none


class Limits(NamedTuple):
    """When a call of ``Engine.run`` must end, at the latest. All checked at every iteration boundary."""

    iterations: int  # at most this many more
    episodes: int  # stop at the first boundary with at least this many more episodes
    target: float  # stop at the first boundary where the last 100 training episodes average at least this
    steps: int = 2**62  # environment steps that are left; an engine that can, stops exactly there


class Iteration(NamedTuple):
    """One iteration as the main loop sees it: plain numbers that depend on nothing but the run itself."""

    metrics: dict[str, float]  # from update
    episodes: int  # how many ended in this iteration
    return_sum: float
    length_sum: int
    mean_return: float  # over the last (up to) 100 training episodes; nan before the first
    ended: list[EpisodeEnd]  # the single episodes in order, where they were asked for
    steps: int | None = None  # environment steps it took, each of them learned from; None: as many as every iteration takes


class EpisodeEnd(NamedTuple):
    env: int
    step: int  # environment's own step within the iteration, 0 .. T-1
    returns: float
    length: int


class Report(NamedTuple):
    """What a call of ``Engine.run`` answers."""

    iterations: list[Iteration]
    run_s: float  # wall time inside the call, compilation excluded
    compile_s: float


class Engine(Protocol):
    """What the main loop drives."""

    steps_per_iteration: int

    def settle(self, folder: Any, warn_fn: Any, stop_fn: Any, trace: bool) -> None: ...  # before init: where, whom to tell, whom to ask
    def init(self, seed: int) -> None: ...
    def run(self, limits: Limits) -> Report: ...
    def cut(self) -> dict[str, Any]: ...
    def attach(self, folder: Any) -> dict[str, str]: ...  # files that belong to a cut, put into its folder; SHA-256 by name
    def load(self, tensors: dict[str, Any]) -> None: ...
    def policy(self) -> Params: ...
    def evaluate(self, episodes: int, greedy: bool) -> Any: ...
    def ledger(self) -> dict[str, int]: ...  # what became of chunks
    def timing(self) -> dict[str, Any]: ...  # how workers spent the last while
    def rest(self) -> None: ...  # nothing is to do until the next call
    def close(self) -> None: ...


class ChunkSink(Protocol):
    def put(self, chunk: Chunk, deadline_s: float) -> None: ...


class ChunkSource(Protocol):
    def take(self, deadline_s: float) -> Chunk: ...


class ParamSink(Protocol):
    def publish(self, version: int, params: Params, deadline_s: float) -> None: ...


class ParamSource(Protocol):
    def latest(self, version: int, deadline_s: float) -> tuple[int, Params]: ...
