"""Whether an environment keeps its side: ``check_env`` plays it and says what conforms, what does not, and what shoal then does.

Importing this imports no JAX: the checks themselves load when they are needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import ConfigError
from shoal.testing.findings import Finding, Log, demand
from shoal.testing.leaf import Misfit

EPISODES = 10


def check_env(env: Any, *, options: Mapping[str, Any] | None = None, episodes: int = EPISODES, seed: int = 0, must: bool = False
              ) -> list[Finding]:
    """Check a name, an environment (compiled, host or Gymnasium's), or a class or function that makes one.

    ``options`` are arguments for a name, class or function. Where the same environment can be made again (all but a bare
    object), it is also compared with a new copy. ``must`` raises ``NonConforming`` if there is a defect.
    """
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} = {value!r}: expected a whole number of at least {least}")
    options = dict(options or {})
    given, make_fn = _find(env, options)
    owned = given is not env
    kind = _kind(given)
    if kind == "compiled":
        from shoal.testing import pure_checks

        log = Log(pure_checks.TABLE)
        pure_checks.check_pure(given, log, episodes, seed, isinstance(env, str))
    else:
        from shoal.testing import host_checks, host_world

        log = Log(host_checks.TABLE)
        try:
            face = host_world.GymnasiumWorld if kind == "gymnasium" else host_world.HostWorld
            host_checks.check_host(face(given, make_fn), log, episodes, seed, isinstance(env, str))
        except Misfit as misfit:
            log.fault(misfit.check, str(misfit))
        finally:
            if owned:
                given.close()
    if isinstance(env, str):
        _try_name(env, options, log)
    findings = log.findings()
    if must:
        demand(name_of(env), findings)
    return findings


def name_of(env: Any) -> str:
    """What to call it in a report."""
    if isinstance(env, str):
        return env
    name = getattr(getattr(env, "spec", None), "name", None) or getattr(getattr(env, "spec", None), "id", None)
    return name if isinstance(name, str) else getattr(env, "__name__", type(env).__name__)


def _find(env: Any, options: dict[str, Any]) -> tuple[Any, Callable[[], Any] | None]:
    """An environment without shoal's maps, and how to make another one."""
    if isinstance(env, str):
        make_fn = _maker(env, options)
        return make_fn(), make_fn
    if inspect.isclass(env) or (callable(env) and not hasattr(env, "step")):
        def make() -> Any:
            try:
                return env(**options)
            except Exception as error:  # the user's code, which may raise anything
                raise ConfigError(f"{name_of(env)} cannot be made: {type(error).__name__}: {error}") from error

        return make(), make
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        raise ConfigError(f"expected an environment, its name, or a class or function that makes one, got {type(env).__name__}")
    if options:
        raise ConfigError(f"option {sorted(options)[0]!r}: an object is made already; give its class or its name")
    if _kind(env) == "gymnasium" and env.spec is not None:
        import gymnasium

        return env, lambda: gymnasium.make(env.spec, disable_env_checker=True)
    return env, None


def _maker(name: str, options: dict[str, Any]) -> Callable[[], Any]:
    from shoal import registry
    from shoal.envs import build
    from shoal.envs import gymnasium as adapter

    build.check_name(name)
    if name in registry.names("env"):
        return lambda: _inner(build.bare(name, **options))
    found = adapter.find_spec(name)

    def make() -> Any:
        import gymnasium

        try:
            return gymnasium.make(found, disable_env_checker=True, **options)
        except Exception as error:  # whatever a simulator raises, missing packages included
            raise ConfigError(f"env {name!r} cannot be made: {(str(error).splitlines() or [type(error).__name__])[0]}") from error

    return make


def _inner(env: Any) -> Any:
    """The environment under shoal's own time limit, which is not what is checked."""
    from shoal.envs import maps

    return env.env if isinstance(env, maps.TimeLimit | maps.HostTimeLimit) else env


def _kind(env: Any) -> str:
    import gymnasium

    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError("a vector environment holds several: check one of them")
    if isinstance(env, gymnasium.Env):
        return "gymnasium"
    return "host" if hasattr(env, "close") else "compiled"


def _try_name(name: str, options: dict[str, Any], log: Log) -> None:
    """An environment may conform and still have spaces that shoal cannot use."""
    from shoal.envs import build

    try:
        made = build.make(name, **options)
    except ConfigError as error:
        log.note("spec", f"{error}", "shoal refuses to train on it")
        return
    if hasattr(made, "close"):
        made.close()
