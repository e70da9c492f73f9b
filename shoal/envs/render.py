"""What an environment looks like, as an RGB image or as text: its own drawing, the image it shows, or its numbers as bars."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.envs import drawing, scene
from shoal.envs.maps import Counted, Shaped
from shoal.envs.stacking import Stacked
from shoal.envs.sticky import Sticking
from shoal.specs import Box, Space
from shoal.types import Tree

MODES = ("ansi", "rgb_array")
WIDTH = 320  # pixels of a drawing

_OWN_STATE = (Counted, Shaped, Stacked, Sticking)  # of maps that keep something beside the environment's


def bare(env: Any, state: Tree) -> tuple[Any, Tree]:
    """The environment under all maps, and its own state."""
    while hasattr(env, "env"):
        env, state = env.env, state.env if isinstance(state, _OWN_STATE) else state
    return env, state


def rgb(env: Any, state: Tree, obs: Tree) -> np.ndarray:
    """uint8 [H, W, 3] of a compiled environment (under maps or not) in ``state``, where it shows ``obs``."""
    inner, own = bare(env, state)
    drawn = drawing.known(inner, own)
    return scene.paint(drawn, WIDTH) if drawn is not None else rgb_of(env.spec.obs, obs)


def text(env: Any, state: Tree, obs: Tree) -> str:
    """The same in lines of characters."""
    inner, own = bare(env, state)
    drawn = drawing.known(inner, own)
    return scene.write(drawn) if drawn is not None else text_of(env.spec.obs, obs)


def rgb_of(space: Space, obs: Tree) -> np.ndarray:
    """An observation alone: itself if it is an image, else bars."""
    if isinstance(space, Box) and len(space.shape) in (2, 3) and np.ndim(obs) == len(space.shape):
        return _image(space, np.asarray(obs, np.float64))
    return scene.paint(drawing.bars(space, obs), WIDTH)


def text_of(space: Space, obs: Tree) -> str:
    return scene.write(drawing.bars(space, obs))


def _image(space: Box, obs: np.ndarray) -> np.ndarray:
    """An image observation as RGB: the newest three channels, or the newest as grey; small ones enlarged."""
    low, high = (float(np.min(bound)) for bound in (space.low, space.high))
    if not (np.isfinite(low) and np.isfinite(high)):
        low, high = float(obs.min()), float(obs.max())
    obs = obs[..., None] if obs.ndim == 2 else obs
    shown = obs[..., -3:] if obs.shape[-1] % 3 == 0 and obs.shape[-1] else np.repeat(obs[..., -1:], 3, axis=-1)
    grown = max(1, WIDTH // 2 // max(1, shown.shape[1]))
    levels = np.rint(np.clip((shown - low) / max(high - low, 1e-12), 0.0, 1.0) * 255).astype(np.uint8)
    return levels.repeat(grown, axis=0).repeat(grown, axis=1)
