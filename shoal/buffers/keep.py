"""A buffer on its own: saved to a folder and loaded from it, wherever its rows lie.

The folder is as a checkpoint's: tensors and a sealed manifest, and beside them a mapped store's files, linked where they are full.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import checkpoint, disk
from shoal.buffers.layout import Form
from shoal.buffers.mapped import Files
from shoal.errors import DamagedError, StoreError
from shoal.tensors import filled, named
from shoal.types import Tree

_PREFIX = "buffer"


def save(folder: Path | str, state: Tree) -> Path:
    """Leave in ``folder``, which must not be there yet, all that ``load`` needs. Killed or failing anywhere, it leaves
    the whole of it or no folder of that name."""
    folder = Path(folder)
    if os.path.lexists(folder):
        raise StoreError(f"{folder}: is there already; a buffer is saved to a folder of its own")
    rest, files = _split(state)
    match = checkpoint.NAME.fullmatch(folder.name)  # such a name promises a step
    tmp = folder.with_name(f".tmp-{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for dead in folder.parent.iterdir():
            if re.fullmatch(re.escape(f".tmp-{folder.name}-") + "[0-9a-f]{8}", dead.name):
                disk.remove(dead)
        disk.mkdir(tmp)
        step, attach_fn = int(match[2]) if match else 0, files.save if files else None
        checkpoint.fill(tmp, step, named(rest, _PREFIX), {"buffer": _about(state)}, {}, attach_fn)
        disk.rename(tmp, folder)
        disk.sync(folder.parent)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be saved: {disk.cause(error)}") from error
    finally:
        with contextlib.suppress(OSError):  # the first failure is the one to tell; the next save comes back to this
            if os.path.lexists(tmp):
                disk.remove(tmp)
    return folder


def load(folder: Path | str, like: Tree) -> Tree:
    """The buffer in ``folder``, every byte of it verified, in the place of ``like``: an empty one of the same sizes, which is used up."""
    folder = Path(folder)
    point = checkpoint.load(folder)
    was, now = point.meta.get("buffer"), _about(like)
    if not isinstance(was, dict):
        raise DamagedError(f"{folder / checkpoint.MANIFEST}: meta.buffer: expected an object")
    for name in now:
        if was.get(name) != now[name]:
            raise StoreError(f"{folder}: {name} was {str(was.get(name))[:200]} and is {str(now[name])[:200]} here")
    rest, files = _split(like)
    with checkpoint.consuming(point.tensors):
        loaded = filled(rest, point.tensors, _PREFIX, np.array)
    if files is not None:
        files.load(folder)
    new = iter(jax.tree.leaves(jax.tree.map(lambda old, new: new if isinstance(old, np.ndarray) else jnp.asarray(new), rest, loaded)))
    return jax.tree.map(lambda old: old if isinstance(old, Files) else next(new), like)


def _split(state: Tree) -> tuple[Tree, Files | None]:
    """A buffer without its files, and those."""
    files = next((leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, Files)), None)
    return jax.tree.map(lambda leaf: () if isinstance(leaf, Files) else leaf, state), files


def _about(state: Any) -> dict[str, Any]:
    """What must be the same in two buffers for one to take the other's place."""
    form: Form = state.form[0]
    return {"sizes": form.ring._asdict(), "fields": [[field.name, list(field.shape), field.dtype, field.kind] for field in form.fields]}
