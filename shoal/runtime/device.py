"""The device a run computes on: chosen once, before JAX starts."""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec

from shoal import code_cache
from shoal.errors import ConfigError

_LARGEST, _KEPT = 32 << 20, 64 << 20  # bytes; glibc takes no greater first one


def _started() -> bool:
    """Whether JAX has already opened its devices in this process."""
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def prepare(device: str, threads: int) -> None:
    """Choose device and XLA's number of CPU threads. Must come before the first computation to take effect."""
    if _started():
        _confirm(device)
        return
    if not _on_gpu(device):
        os.environ["NPROC"] = str(threads)  # XLA sizes its thread pool by this; beside a GPU the pool only compiles, on every core
    import jax

    _keep_memory()
    # acting on a few observations takes half as long when the call is not handed to another thread
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    folder = code_cache.folder("xla")
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    _confirm(device)


def _keep_memory() -> None:
    """Have glibc keep what is freed for the next call: given back, it comes again page by page and zeroed, at every update."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
        mallopt(-3, _LARGEST)
        mallopt(-1, _KEPT)


def _on_gpu(device: str, drivers: tuple[str, ...] = ("/dev/nvidiactl", "/dev/kfd")) -> bool:
    """Whether JAX will compute on a GPU, as far as can be told before it opens its devices."""
    if device == "auto":
        return find_spec("jax_plugins") is not None and any(map(os.path.exists, drivers)) and os.environ.get("JAX_PLATFORMS") != "cpu"
    return device == "gpu"


def _confirm(device: str) -> None:
    import jax

    try:
        kind = jax.default_backend()
    except RuntimeError as error:
        raise ConfigError(f"device = {device!r}: {str(error).splitlines()[0]}") from error
    if device == "gpu" and kind != "gpu":
        raise ConfigError("device = 'gpu': JAX sees no GPU here; install shoal[cuda] on a machine that has one, or use --device cpu")
    if device == "cpu" and kind != "cpu":
        raise ConfigError(f"device = 'cpu': JAX is already running on the {kind} in this process; choose the device before its first use")


def describe() -> dict[str, str]:
    """What bits depend on besides the plan: recorded in checkpoints, compared on resume."""
    import jax
    import jaxlib
    import numpy

    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "numpy": numpy.__version__, "device": jax.devices()[0].device_kind}


_EVENT = "/jax/core/compile/backend_compile_duration"
_heard: list[float] = []  # seconds of every compilation in this process, once anyone counts them


def _hear(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _EVENT:
        _heard.append(duration_secs)


class Compilations:
    """XLA compilations from its creation on; after warm-up there must be none."""

    _listening = False

    def __init__(self) -> None:
        import jax

        if not Compilations._listening:  # listeners cannot be taken back: one for all
            jax.monitoring.register_event_duration_secs_listener(_hear)
            Compilations._listening = True
        self._first = len(_heard)

    @property
    def count(self) -> int:
        return len(_heard) - self._first

    @property
    def seconds(self) -> float:
        return sum(_heard[self._first:])
