"""The peers' own environments: never mixed with shoal's. Made with pip under ``.peers/`` when absent.

``SHOAL_PEERS`` may name a folder that has them already, as ``t1/`` (Stable-Baselines3, SBX, MuJoCo), ``j1/`` (rejax),
``c1/`` (cpprb), ``f1/`` (flashbax), ``e1/`` (EnvPool), ``r1/`` (RLlib) and ``s1/`` (Sample Factory).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import table

# one list per call of pip; torch comes first and by itself, so that nothing later brings another build of it
INSTALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "t1": (("torch==2.13.0",), ("stable-baselines3", "sbx-rl", "gymnasium[mujoco]")),
    "j1": (("jax==0.10.2", "flax", "optax", "distrax", "rejax", "gymnax==0.0.9"),),
    "c1": (("cpprb",),),
    "f1": (("jax==0.10.2", "flashbax"),),
    "e1": (("envpool", "gymnasium"),),
    "r1": (("torch==2.13.0",), ("ray[rllib]",)),
    "s1": (("torch==2.13.0",), ("sample-factory",)),
}
PROBES = {"t1": "import torch, stable_baselines3, sbx, mujoco", "j1": "import rejax, gymnax", "c1": "import cpprb",
          "f1": "import flashbax", "e1": "import envpool, gymnasium", "r1": "import torch, ray.rllib",
          "s1": "import torch, sample_factory, gymnasium"}


def folder() -> Path:
    return Path(os.environ.get("SHOAL_PEERS") or table.ROOT / ".peers")


def python(name: str) -> Path:
    """The interpreter of a peers' environment, which is made first where it is not there."""
    home = folder() / name
    interpreter, ready = home / "bin" / "python", home / ".ready"
    given = "SHOAL_PEERS" in os.environ
    if ready.exists() or (given and interpreter.exists()):
        return interpreter
    if given:
        raise FileNotFoundError(f"SHOAL_PEERS = {folder()}: no {name}/bin/python there")
    print(f"installing peers into {home} …", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    for packages in INSTALLS[name]:
        subprocess.run([str(interpreter), "-m", "pip", "install", "--quiet", *packages], check=True)
    subprocess.run([str(interpreter), "-c", PROBES[name]], check=True)
    ready.touch()
    return interpreter
