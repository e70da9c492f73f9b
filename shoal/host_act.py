"""How host lanes act: one call per step, so what a call costs besides its arithmetic is what counts.

``act`` is traced once. A small one is then run operation by operation in NumPy, where a compiled call would cost more than it computes;
any other is compiled. Which it is follows from the algorithm, its network and the size of a lane, never from where the lane runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from shoal import lane, rng
from shoal.specs import EnvSpec, zeros
from shoal.types import Acted, Algorithm, Params

ActFn = Callable[..., Any]  # (memory, obs, role, noise) → Acted
_MOST_PRODUCTS = 2**18  # in matrix products; up to here BLAS takes one thread, however many it has
_MOST_CALLS = 40  # per step; so many take as long as a compiled call


def acting(algorithm: Algorithm, spec: EnvSpec, size: int) -> Callable[[Params], ActFn]:
    """How host lanes of ``size`` act: for parameters, whole or as their leaves, a call of ``(memory, obs, role, noise)``."""
    traced = _Traced(algorithm, spec, size)
    return traced.in_numpy if traced.program.fits else traced.compiled


class _Traced:
    """``act`` of one algorithm on one shape, as a list of operations."""

    def __init__(self, algorithm: Algorithm, spec: EnvSpec, size: int):
        self.numbers, self.shape = jax.tree.flatten(algorithm)
        self.host_numbers: list[Any] = [np.asarray(x) for x in self.numbers]
        key = rng.root(0)
        like = jax.eval_shape(lambda a, k: (a.policy(a.init(spec, k)), a.draw(spec, k, (size,))), algorithm, key)
        memory, obs = algorithm.memory(spec, size), zeros(spec.obs, (size, *spec.agent_shape))
        self.policy = jax.tree.structure(like[0])
        example = (self.numbers, like[0], lane.role(0.0, size), memory, obs, like[1])

        def act(numbers: Any, params: Params, role: Any, memory: Any, obs: Any, noise: Any) -> Any:
            return jax.tree.unflatten(self.shape, numbers).act(params, memory, obs, role, noise)

        closed, out = jax.make_jaxpr(act, return_shape=True)(*example)
        self.jaxpr, self.out, self.program = closed.jaxpr, jax.tree.structure(out), _Program(closed, len(jax.tree.leaves(example[:3])))
        like_action: Any = jax.tree.structure(Acted(0, (), ()))
        self.is_plain = not jax.tree.leaves(memory) and like_action == self.out  # saves a microsecond per step

    def in_numpy(self, params: Params) -> ActFn:
        """``act`` as NumPy calls. What depends on parameters and role alone is computed once."""
        fixed: list[Any] = self.host_numbers + [np.asarray(x) for x in jax.tree.leaves(params)]
        bound: tuple[Any, Callable[..., Any] | None] = (None, None)

        def act(memory: Any, obs: Any, role: Any, noise: Any) -> Any:
            nonlocal bound
            if bound[0] is not role:
                bound = role, self.program.bind(fixed + [np.asarray(x) for x in role])
            run: Any = bound[1]
            if self.is_plain and type(obs) is np.ndarray is type(noise):
                return Acted(run([obs, noise])[0], (), ())
            return jax.tree.unflatten(self.out, run([np.asarray(x) for x in jax.tree.leaves((memory, obs, noise))]))

        return act

    def compiled(self, params: Params) -> ActFn:
        """``act`` as a compiled call.

        Each argument costs about a microsecond, every step. So parameters are taken apart once per version (equinox modules are
        flattened by Python), and of the algorithm's numbers only those go along that are read.
        """
        read = {id(v) for equation in self.jaxpr.eqns for v in equation.invars} | {id(v) for v in self.jaxpr.outvars}
        used = tuple(id(v) in read for v in self.jaxpr.invars[:len(self.numbers)])
        needed = tuple(x for x, wanted in zip(self.numbers, used, strict=True) if wanted)
        return partial(_compiled(self.shape, self.policy, used), needed, tuple(jax.tree.leaves(params)))


@lru_cache(maxsize=64)
def _compiled(shape: Any, structure: Any, used: tuple[bool, ...]) -> Callable[..., Any]:
    """``act`` for an algorithm and parameters that come as leaves.

    Structures are looked up here once per version: as static arguments they would be compared at every step.
    """

    def act(numbers: tuple[Any, ...], leaves: tuple[Any, ...], *rest: Any) -> Any:
        given = iter(numbers)
        algorithm = jax.tree.unflatten(shape, [next(given) if needed else 0.0 for needed in used])
        return algorithm.act(jax.tree.unflatten(structure, leaves), *rest)

    return jax.jit(act)


# --- operations ------------------------------------------------------------------------------------------------------


def _logistic(x: Any) -> Any:
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1.0))  # cannot overflow


_PLAIN: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum, "neg": np.negative,
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "logistic": _logistic, "sqrt": np.sqrt, "abs": np.abs,
    "sign": np.sign, "floor": np.floor, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "copy": lambda x: x,
    "stop_gradient": lambda x: x, "square": np.square,
}


def _convert(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: x if x.dtype == dtype else x.astype(dtype)


def _broadcast(shape: tuple[int, ...], dims: tuple[int, ...]) -> Callable[[Any], Any]:
    def broadcast(x: Any) -> Any:
        ones = [1] * len(shape)
        for axis, dim in enumerate(dims):
            ones[dim] = x.shape[axis]
        x = x.reshape(ones)
        return x if x.shape == shape else np.broadcast_to(x, shape)  # a call of 5 µs, where one environment seldom needs it

    return broadcast


def _operation(equation: Any) -> Callable[..., Any] | None:
    """The NumPy call of one equation; None where there is none that means the same."""
    name, given = equation.primitive.name, equation.params
    shape = equation.outvars[0].aval.shape
    if name in _PLAIN:
        integers = name == "div" and not np.issubdtype(equation.invars[0].aval.dtype, np.floating)
        bits = name in ("and", "or", "not") and equation.invars[0].aval.dtype != bool
        return None if integers or bits else _PLAIN[name]
    if name == "convert_element_type":
        return _convert(given["new_dtype"])
    if name == "broadcast_in_dim":
        return _broadcast(given["shape"], given["broadcast_dimensions"])
    if name in ("reshape", "squeeze", "expand_dims"):
        return None if given.get("dimensions") and name == "reshape" else lambda x: x.reshape(shape)
    if name == "select_n" and len(equation.invars) == 3:
        return lambda which, no, yes: np.where(which, yes, no)
    if name == "dot_general":
        plain = given["dimension_numbers"] == (((1,), (0,)), ((), ())) and len(shape) == 2
        return np.dot if plain else None
    if name in ("concatenate", "stack"):
        join, axis = (np.stack, given["axis"]) if name == "stack" else (np.concatenate, given["dimension"])
        return lambda *xs: join(xs, axis)
    if name == "argmax":
        (axis,), dtype = given["axes"], given["index_dtype"]
        return lambda x: x.argmax(axis).astype(dtype)
    return None


class _Line(NamedTuple):
    """One operation on numbered values."""

    operation: Callable[..., Any]
    given: tuple[int, ...]
    out: int
    is_choice: bool  # of a value by a flag, which may be known before the values are


class _Program:
    """A traced function as lines, those of inner calls in their place. The first ``num_known`` inputs will be known ahead."""

    def __init__(self, closed: Any, num_known: int = 0):
        self.lines: list[_Line] = []
        self.start: list[Any] = []  # values known from the beginning; None for the others
        self.missing: set[str] = set()  # what NumPy has no call for
        self._products = 0
        self._cuts: dict[int, tuple[int, tuple[Any, ...]]] = {}  # of what, and how, each cut was made
        self._plan: _Plan | None = None
        self.inputs = [self._place() for _ in closed.jaxpr.invars]
        self.outputs = self._add(closed.jaxpr, closed.consts, self.inputs)
        moving = set(self.inputs[num_known:])
        for line in self.lines:
            moving |= {line.out} if moving & set(line.given) else set()
        num_calls = len(moving) - len(self.inputs[num_known:])
        self.fits = not self.missing and self._products <= _MOST_PRODUCTS and num_calls <= _MOST_CALLS

    def _place(self, value: Any = None) -> int:
        self.start.append(value)
        return len(self.start) - 1

    def _add(self, jaxpr: Any, consts: Any, given: list[int]) -> list[int]:
        places = dict(zip(jaxpr.invars, given, strict=True))
        places |= {v: self._place(np.asarray(x)) for v, x in zip(jaxpr.constvars, consts, strict=True)}

        def find(v: Any) -> int:
            return self._place(np.asarray(v.val, v.aval.dtype)) if isinstance(v, core.Literal) else places[v]  # type: ignore[attr-defined]

        for equation in jaxpr.eqns:
            into, inner = [find(v) for v in equation.invars], equation.params.get(_CALLS.get(equation.primitive.name, ""))
            if inner is not None:
                body, constants = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, [])
                places |= zip(equation.outvars, self._add(body, constants, into), strict=True)
                continue
            if (cut := self._cut(equation, into)) is not None:
                places[equation.outvars[0]] = cut
                continue
            places |= {v: self._place() for v in equation.outvars}
            self._line(equation, tuple(into), places[equation.outvars[0]])
        return [find(v) for v in jaxpr.outvars]

    def _cut(self, equation: Any, into: list[int]) -> int | None:
        """Where the part that a slice takes is, each taken once; one number of it, as a slice and a squeeze take, is one part."""
        name, params = equation.primitive.name, equation.params
        if name == "slice":
            strides = params["strides"] or (1,) * len(params["start_indices"])
            source, index = into[0], tuple(zip(params["start_indices"], params["limit_indices"], strides, strict=True))
        elif name == "squeeze" and into[0] in self._cuts:
            source, cut = self._cuts[into[0]]
            if any(type(part) is int for part in cut):
                return None
            index = tuple(part[0] if axis in params["dimensions"] else part for axis, part in enumerate(cut))
        else:
            return None
        place = next((place for place, known in self._cuts.items() if known == (source, index)), None)
        if place is None:
            place, taken = self._place(), (*(part if type(part) is int else slice(*part) for part in index), ...)  # an array, even of one
            self.lines.append(_Line(lambda x: x[taken], (source,), place, False))
            self._cuts[place] = source, index
        return place

    def _line(self, equation: Any, given: tuple[int, ...], out: int) -> None:
        name, operation = equation.primitive.name, _operation(equation)
        if operation is None or len(equation.outvars) > 1 or equation.outvars[0].aval.dtype == np.float64:
            self.missing.add(name)
            return
        if name == "dot_general":
            left, right = (v.aval.shape for v in equation.invars)
            self._products += left[0] * left[1] * right[1]
        self.lines.append(_Line(operation, given, out, name == "select_n" and equation.invars[0].aval.shape == ()))

    def bind(self, known: list[Any]) -> Callable[[list[Any]], list[Any]]:
        """What is left when the first inputs are ``known``, as a function of the others."""
        values = list(self.start)
        values[:len(known)] = known  # inputs have the first places
        if self._plan is not None:
            for operation, given, out in self._plan.ahead:
                values[out] = np.asarray(operation(*[values[place] for place in given]))
        if self._plan is None or any(int(values[place]) != was for place, was in self._plan.flags):
            self._plan = self._planned(values, self.inputs[len(known):])
        return self._plan.bind(values)

    def _planned(self, values: list[Any], inputs: list[int]) -> _Plan:
        """What to do ahead and what at every step, where all but ``inputs`` are known; ``values`` gets what is worked out on the way."""
        same: dict[int, int] = {}
        ahead, flags, left = [], [], []
        waits = set(inputs)
        for operation, given, out, is_choice in self.lines:
            given = tuple(same.get(place, place) for place in given)
            if not waits & set(given):
                values[out] = np.asarray(operation(*(values[place] for place in given)))
                ahead.append((operation, given, out))
            elif is_choice and given[0] not in waits:
                flags.append((given[0], int(values[given[0]])))
                same[out] = given[1 + flags[-1][1]]
            else:
                left.append((operation, given, out))
                waits.add(out)
        return _plan(ahead, flags, left, inputs, [same.get(place, place) for place in self.outputs])


_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


class _Plan(NamedTuple):
    """A program cut in two: what is worked out once for parameters and role, and what at every step."""

    ahead: list[Any]  # operations in order
    flags: list[tuple[int, int]]  # that decided between values, and how
    known: list[int]  # places that the rest reads
    calls: list[Callable[[list[Any]], Any]]
    outputs: list[int]

    def bind(self, values: list[Any]) -> Callable[[list[Any]], list[Any]]:
        """The second part as a function of the inputs, which are arrays: keeping a value is appending it."""
        known, calls, outputs = [values[place] for place in self.known], self.calls, self.outputs

        def run(leaves: list[Any]) -> list[Any]:
            values = known + leaves
            for call in calls:
                values.append(call(values))
            return [values[place] for place in outputs]

        return run


def _plan(ahead: list[Any], flags: list[tuple[int, int]], lines: list[Any], inputs: list[int], outputs: list[int]) -> _Plan:
    """Lines as calls. Values are renumbered in the order they come: what is known, inputs, results."""
    needed, kept = set(outputs), []
    for operation, given, out in reversed(lines):
        if out in needed:
            needed |= set(given)
            kept.append((operation, given, out))
    results = [out for _, _, out in reversed(kept)]
    known = sorted(needed - set(inputs) - set(results))
    order = {place: i for i, place in enumerate([*known, *inputs, *results])}
    calls = [_call(operation, [order[place] for place in given]) for operation, given, _ in reversed(kept)]
    return _Plan(ahead, flags, known, calls, [order[place] for place in outputs])


def _call(operation: Callable[..., Any], given: list[int]) -> Callable[[list[Any]], Any]:
    """One operation on the values so far."""
    match given:
        case [a]:
            return lambda values: operation(values[a])
        case [a, b]:
            return lambda values: operation(values[a], values[b])
    return lambda values: operation(*[values[place] for place in given])
