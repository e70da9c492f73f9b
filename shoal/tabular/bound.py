"""Kernels bound to a kind of learning: copies of their functions that see it as a constant, with the forms it calls for under the names
they are called by. So one source serves the plain table, which runs them as they are, and the compiled one."""

from __future__ import annotations

import functools
import types
from typing import Any

from shoal.tabular import duel, elementary, kernels, memory
from shoal.tabular.rule import (
    BOLTZMANN,
    CONSTANT,
    DOUBLE,
    EPSILON,
    EXPECTED,
    EXPONENTIAL,
    GREEDY,
    LINEAR,
    N_STEP,
    ONE_STEP,
    RETURNS,
    SWEEPING,
    TAKEN,
    TRACES,
    UCB,
    Kind,
)

MODULES = (elementary, memory, kernels, duel)


def forms(kind: Kind) -> dict[str, Any]:
    """The form of each function that has several."""
    double = kind.target == DOUBLE
    expected = kernels.value_expected_boltzmann if kind.explore == BOLTZMANN else kernels.value_expected_epsilon
    return {
        "level_at": {CONSTANT: kernels.level_constant, LINEAR: kernels.level_linear, EXPONENTIAL: kernels.level_exponential}[kind.schedule],
        "worth": kernels.worth_double if double else kernels.worth_single,
        "tries": kernels.tries_double if double else kernels.tries_single,
        "choose": {EPSILON: kernels.choose_epsilon, BOLTZMANN: kernels.choose_boltzmann, UCB: kernels.choose_ucb}[kind.explore],
        "value": {GREEDY: kernels.value_greedy, TAKEN: kernels.value_taken, EXPECTED: expected, DOUBLE: kernels.value_double}[kind.target],
        "write": {ONE_STEP: kernels.write_one_step, N_STEP: memory.write_n_step, TRACES: memory.write_traces,
                  RETURNS: memory.write_returns, SWEEPING: memory.write_sweeping}[kind.family],
    }


def copies(modules: tuple[types.ModuleType, ...], kind: Kind, **others: Any) -> dict[str, Any]:
    """Everything in some modules under its name, functions as copies that find one another, ``kind`` and ``others`` there."""
    space = {name: x for module in modules for name, x in vars(module).items() if not name.startswith("__")}
    space |= forms(kind) | others | {"kind": kind, "__name__": kernels.__name__}
    own = {module.__name__ for module in modules}
    for name, fn in list(space.items()):
        if isinstance(fn, types.FunctionType) and (fn.__module__ in own or name in others):
            space[name] = types.FunctionType(fn.__code__, space, name, fn.__defaults__)
    return space


@functools.cache
def plain(kind: Kind) -> types.SimpleNamespace:
    """The kernels as they are."""
    return types.SimpleNamespace(**copies(MODULES, kind))
