"""Names for environments, algorithms, networks and runtimes: the only way from a name to code.

Built-ins are listed as ``module:attribute`` and imported when first asked for; users add theirs with
``shoal.register``. No file that shoal reads can add a name. No JAX here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import ConfigError, MissingError, nearest

BUILTIN: dict[str, dict[str, str]] = {
    "env": {
        "cartpole": "shoal.envs.cartpole:CartPole",
        "acrobot": "shoal.envs.acrobot:Acrobot",
        "pendulum": "shoal.envs.pendulum:Pendulum",
        "mountain_car": "shoal.envs.mountain_car:MountainCar",
        "mountain_car_continuous": "shoal.envs.mountain_car_continuous:MountainCarContinuous",
        "gridworld": "shoal.envs.gridworld:GridWorld",
        "bandit": "shoal.envs.bandit:Bandit",
        "chain": "shoal.envs.chain:Chain",
        "bit_flip": "shoal.envs.bit_flip:BitFlip",
        "goal_gridworld": "shoal.envs.goal_gridworld:GoalGridWorld",
        "blind_cliffwalk": "shoal.envs.blind_cliffwalk:BlindCliffwalk",
        "matrix_game": "shoal.envs.matrix_game:MatrixGame",
        "rendezvous": "shoal.envs.rendezvous:Rendezvous",
        "rigged_bandit": "shoal.envs.rigged_bandit:RiggedBandit",
        "tictactoe": "shoal.envs.tictactoe:TicTacToe",
        "probe": "shoal.testing.probes:Probe",
    },
    "algo": {
        "ppo": "shoal.algos.ppo:PPO",
        "recurrent_ppo": "shoal.algos.recurrent_ppo:RecurrentPPO",
        "a2c": "shoal.algos.a2c:A2C",
        "impala": "shoal.algos.impala:IMPALA",
        "reinforce": "shoal.algos.reinforce:REINFORCE",
        "dqn": "shoal.algos.dqn:DQN",
        "qr_dqn": "shoal.algos.qr_dqn:QRDQN",
        "linear_q": "shoal.algos.linear_q:LinearQ",
        "sac": "shoal.algos.sac:SAC",
        "td3": "shoal.algos.td3:TD3",
        "ddpg": "shoal.algos.ddpg:DDPG",
        "q_learning": "shoal.tabular.learner:QLearning",
        "sarsa": "shoal.tabular.learner:Sarsa",
        "expected_sarsa": "shoal.tabular.learner:ExpectedSarsa",
        "double_q_learning": "shoal.tabular.learner:DoubleQLearning",
        "n_step_sarsa": "shoal.tabular.learner:NStepSarsa",
        "q_lambda": "shoal.tabular.learner:QLambda",
        "sarsa_lambda": "shoal.tabular.learner:SarsaLambda",
        "monte_carlo": "shoal.tabular.learner:MonteCarlo",
        "dyna_q": "shoal.tabular.learner:DynaQ",
    },
    "net": {"mlp": "shoal.nets:MLP", "cnn": "shoal.nets:CNN"},
    "runtime": {"local": "shoal.runtime.local:Local", "processes": "shoal.runtime.process:Processes",
                "threads": "shoal.runtime.threads:Threads", "mpi": "shoal.runtime.mpi:Mpi"},
    "team": {"independent": "shoal.algos.team:Independent", "shared": "shoal.algos.team:Shared"},
}

_added: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in BUILTIN}
_plugins: list[str] = []


def register(*, env: Mapping[str, Callable[..., Any]] | None = None, algo: Mapping[str, Callable[..., Any]] | None = None,
             net: Mapping[str, Callable[..., Any]] | None = None) -> None:
    """Give names to your own environments, algorithms and networks: ``register(env={"my_env": MyEnv})``."""
    for kind, given in (("env", env), ("algo", algo), ("net", net)):
        for name, factory in (given or {}).items():
            taken = _added[kind].get(name)
            if name in BUILTIN[kind] or (taken is not None and taken is not factory):
                raise ConfigError(f"{kind} name {name!r} is already taken")
            if not callable(factory):
                raise ConfigError(f"{kind} {name!r}: expected a class or function, got {type(factory).__name__}")
            _added[kind][name] = factory


def names(kind: str) -> list[str]:
    """Every known name of a kind, built-in first."""
    return list(BUILTIN[kind]) + sorted(_added[kind])


def find(kind: str, name: str) -> Callable[..., Any]:
    """The class or function behind a name."""
    if name in _added[kind]:
        return _added[kind][name]
    if name in BUILTIN[kind]:
        module, attribute = BUILTIN[kind][name].split(":")
        return getattr(importlib.import_module(module), attribute)
    raise MissingError(f"unknown {kind} {name!r}{nearest(name, names(kind))}")


def name_of(kind: str, factory: Any) -> str | None:
    """The name a class is registered under, or None."""
    for name, known in _added[kind].items():
        if known is factory:
            return name
    path = f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', '')}"
    return next((name for name, target in BUILTIN[kind].items() if target == path), None)


@functools.cache
def _installed() -> tuple[importlib.metadata.EntryPoint, ...]:
    """The plugins that installed packages announce; looking through all of them takes 10 ms."""
    return tuple(importlib.metadata.entry_points(group="shoal.plugins"))


def load_plugins(modules: tuple[str, ...]) -> None:
    """Import the user's modules, so that they register their names; installed entry points come along."""
    for point in _installed():
        if point.module not in _plugins:
            _plugins.append(point.module)
            point.load()
    for module in modules:
        if module in _plugins:
            continue
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and module.split(".")[0] == error.name.split(".")[0]:
                raise MissingError(f"plugin {module!r} is not importable; is it installed or on PYTHONPATH?") from error
            raise
        _plugins.append(module)


def loaded() -> tuple[str, ...]:
    """The plugins that have been imported, named or installed."""
    return tuple(_plugins)


def provider(kind: str, name: str) -> str | None:
    """The plugin that registered a name; None for a built-in, or for what a script registered itself."""
    module = home(kind, name)
    return next((plugin for plugin in _plugins if module == plugin or module.startswith(f"{plugin}.")), None)


def home(kind: str, name: str) -> str:
    """The module in which a name's class or function was defined; empty for a built-in."""
    return getattr(_added[kind].get(name), "__module__", "") or ""


def home_room(kind: str, name: str) -> str:
    """The part of the package that a built-in belongs to: ``algos``, ``tabular``; empty for what a user registered."""
    return f"{BUILTIN[kind].get(name, '')}..".split(".")[1]
