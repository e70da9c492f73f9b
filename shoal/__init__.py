"""shoal: parallel and distributed reinforcement learning, from a Q-table to a cluster.

Names load when first used: importing shoal touches no device, environment variable, socket or optional package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shoal import errors
from shoal.registry import register

if TYPE_CHECKING:
    from shoal.algos import team
    from shoal.algos.a2c import A2C
    from shoal.algos.ddpg import DDPG
    from shoal.algos.dqn import DQN
    from shoal.algos.impala import IMPALA
    from shoal.algos.linear_q import LinearQ
    from shoal.algos.ppo import PPO
    from shoal.algos.qr_dqn import QRDQN
    from shoal.algos.recurrent_ppo import RecurrentPPO
    from shoal.algos.reinforce import REINFORCE
    from shoal.algos.sac import SAC
    from shoal.algos.td3 import TD3
    from shoal.api import evaluate, load, resume, train
    from shoal.callbacks import Callback
    from shoal.envs import make
    from shoal.envs.view import gym_view
    from shoal.given import Replay, ReplayPool
    from shoal.main_loop import MainLoop
    from shoal.runtime.local import Local
    from shoal.runtime.process import Processes
    from shoal.runtime.threads import Threads
    from shoal.tabular.learner import (
        DoubleQLearning,
        DynaQ,
        ExpectedSarsa,
        MonteCarlo,
        NStepSarsa,
        QLambda,
        QLearning,
        Sarsa,
        SarsaLambda,
    )

__version__ = "0.1.0"

_LAZY = {
    "MainLoop": "shoal.main_loop", "Callback": "shoal.callbacks", "PPO": "shoal.algos.ppo",
    "A2C": "shoal.algos.a2c", "IMPALA": "shoal.algos.impala", "REINFORCE": "shoal.algos.reinforce",
    "RecurrentPPO": "shoal.algos.recurrent_ppo",
    "DQN": "shoal.algos.dqn", "QRDQN": "shoal.algos.qr_dqn", "LinearQ": "shoal.algos.linear_q",
    "SAC": "shoal.algos.sac", "TD3": "shoal.algos.td3", "DDPG": "shoal.algos.ddpg",
    "QLearning": "shoal.tabular.learner", "Sarsa": "shoal.tabular.learner", "ExpectedSarsa": "shoal.tabular.learner",
    "DoubleQLearning": "shoal.tabular.learner", "NStepSarsa": "shoal.tabular.learner", "QLambda": "shoal.tabular.learner",
    "SarsaLambda": "shoal.tabular.learner", "MonteCarlo": "shoal.tabular.learner", "DynaQ": "shoal.tabular.learner",
    "Replay": "shoal.given", "ReplayPool": "shoal.given", "Local": "shoal.runtime.local",
    "Processes": "shoal.runtime.process", "Threads": "shoal.runtime.threads",
    "make": "shoal.envs", "gym_view": "shoal.envs.view",
    "train": "shoal.api", "evaluate": "shoal.api", "load": "shoal.api", "resume": "shoal.api",
}

__all__ = ["A2C", "DDPG", "DQN", "IMPALA", "PPO", "QRDQN", "REINFORCE", "SAC", "TD3", "Callback", "DoubleQLearning", "DynaQ",
           "ExpectedSarsa", "LinearQ", "Local", "MainLoop", "MonteCarlo", "NStepSarsa", "Processes", "QLambda", "QLearning",
           "RecurrentPPO", "Replay", "ReplayPool", "Sarsa", "SarsaLambda", "Threads", "errors", "evaluate", "gym_view", "load",
           "make", "register", "resume", "team", "train"]


def __getattr__(name: str) -> Any:
    if name == "team":
        return importlib.import_module("shoal.algos.team")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}{errors.nearest(name, __all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
