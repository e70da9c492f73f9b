"""From flags, files and presets to one checked plan. No JAX here: bad input is answered before it loads."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal import plan as plan_module
from shoal import registry
from shoal.errors import ConfigError, MissingError, nearest
from shoal.fields import COMPUTED, REQUIRED, Described, Field, cast, check, describe, plain, plan_fields, refuse, show
from shoal.given import lanes_of_tables
from shoal.plan import Plan
from shoal.toml import MAX_BYTES, loads_toml

BUDGETS = ("steps", "episodes", "minutes")
DEFAULT_STEPS = 100_000
PRESET_NOTES = ("aliases", "score", "scored_on")
MAX_FILE_BYTES = MAX_BYTES
MAX_NAME = 200  # letters in a text field of the plan
_TABLES = ("algorithm", "env_options")
_NOTES = ("shoal_version",)  # in a run's own record; says who wrote it, sets nothing


def fields(kind: str, name: str) -> list[Field]:
    """Every field of an algorithm or environment: name, type, default and its sentence of help."""
    return describe(kind, name).fields


class Layer(NamedTuple):
    plan: dict[str, Any]
    algorithm: dict[str, Any]
    env_options: dict[str, Any]


def _known_env(name: str) -> Described | None:
    """The settings of a registered environment; None for a Gymnasium id, which checks its own when it is made."""
    if name in registry.names("env"):
        return describe("env", name)
    from shoal.envs.build import check_name  # imports gymnasium, 0.2 s: only for names that are not ours

    check_name(name)
    return None


def _options(data: Mapping[str, Any], known: Described | None, owner: str, where: str, flag: bool = False) -> dict[str, Any]:
    """A table of fields, each checked; keys of an open or foreign owner pass as plain data."""
    checked = {}
    for key, value in data.items():
        item = known.find(key) if known else None
        place = f"--{key.replace('_', '-')}" if flag else where
        if item is not None and known is not None:
            checked[key] = check(item, value, known, place)
        elif known is None or known.open:
            checked[key] = plain(key, value, place)
        else:
            raise _unknown(key, f"{owner} has no field", (item.name for item in known.fields), place)
    return checked


def _unknown(key: str, what: str, known: Iterable[str], where: str) -> ConfigError:
    return ConfigError(f"{what} {show(key)}{f' ({where})' if where else ''}{nearest(key, known)}")


def _one_line(key: str, value: Any, where: str) -> str:
    """Text as the plan's own fields hold it: names, paths and cadences, none of them long."""
    text = cast(key, value, "str", where)
    if len(text) > MAX_NAME or not text.isprintable():
        raise refuse(key, text, f"a single line of at most {MAX_NAME} letters", where)
    return text


def _sort(data: Mapping[str, Any], algo: str, env: str, where: str, *, flat: bool = True, flag: bool = False) -> Layer:
    """One layer's keys, checked and put where they belong; ``flat`` allows algorithm fields beside the plan's own."""
    known, plan, algorithm = describe("algo", algo), {}, dict(_table(data, "algorithm", where))
    own = {item.name: item for item in plan_fields() if item.name not in _TABLES}
    for key, value in data.items():
        if key in own:
            text = key in ("checkpoint_every", "workers") and isinstance(value, int) and not isinstance(value, bool)
            place = f"--{key.replace('_', '-')}" if flag else where
            plan[key] = _one_line(key, str(value) if text else value, place) if own[key].type == "str" else cast(
                key, value, own[key].type, place)
        elif key in _TABLES or (key in _NOTES and where and not flat):
            continue
        elif flat and known.find(key):
            algorithm[key] = value
        elif known.find(key):
            raise ConfigError(f"{key} is a field of {algo}: put it under [algorithm] ({where})")
        else:
            raise _unknown(key, "unknown key", [*own, *_TABLES, *((item.name for item in known.fields) if flat else ())], where)
    options = _table(data, "env_options", where)
    return Layer(plan, _options(algorithm, known, algo, f"{where} [algorithm]".strip(), flag),
                 _options(options, _known_env(env), env, "--env-option" if flag else f"{where} [env_options]".strip()))


def _table(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, Mapping):
        raise refuse(key, table, "a table", where)
    return table


def read(path: str | Path) -> dict[str, Any]:
    """A TOML file as data, or one line that says what is wrong with it."""
    try:
        if not Path(path).is_file():
            siblings = [item.name for item in Path(path).parent.glob("*.toml")] if Path(path).parent.is_dir() else []
            raise MissingError(f"no config file {show(str(path))}{nearest(Path(path).name, siblings)}")
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        return loads_toml(content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _find_preset(algo: str, env: str, wish: str) -> tuple[str, dict[str, Any]]:
    """The name and table of the preset to use; ``("none", {})`` where there is none."""
    path = Path(__file__).parent / "presets" / f"{algo}.toml"
    tables = read(path) if wish != "none" and path.is_file() else {}
    if wish not in ("auto", "none"):
        if wish not in tables:
            raise MissingError(f"preset = {show(wish)}: {algo} has no such preset{nearest(wish, [*tables, 'auto', 'none'])}")
        return wish, tables[wish]
    return next(((name, table) for name, table in tables.items() if env == name or env in table.get("aliases", ())), ("none", {}))


def load_plugins(modules: Iterable[str]) -> None:
    """Import the user's modules; whatever goes wrong in one is an error that names it."""
    try:
        registry.load_plugins(tuple(modules))
    except ConfigError:
        raise
    except Exception as error:  # a plugin is the user's code and may raise anything
        whose = ", ".join(modules) or "an entry point"
        raise ConfigError(f"plugin {whose} failed: {type(error).__name__}: {error}") from error


def check_plugins(named: Any, given: Iterable[str], where: str) -> None:
    """A file may say which plugins it needs, but never import them: the user names them again."""
    for module in cast("plugins", named, "tuple[str, ...]", where):
        if module not in given:
            name = module if re.fullmatch(r"[\w.]{1,99}", module) else "NAME"
            raise MissingError(f"{where} needs plugin {show(module)}: a file cannot import code; add --plugin {name}")


def resolve(flags: Mapping[str, Any], config_file: str | Path | None = None) -> tuple[Plan, str]:
    """Defaults ← preset ← file ← flags, checked, with every field of the algorithm filled in; and a note on the preset.

    ``flags`` holds typed values: fields of the plan and, beside them or under ``algorithm``, fields of the algorithm.
    """
    where = str(config_file or "")
    file = read(config_file) if config_file else {}
    given = {"algo": Plan.algo, "env": Plan.env, "preset": Plan.preset, **file, **flags}
    algo, env, wish = (_one_line(name, given[name], where) for name in ("algo", "env", "preset"))
    plugins = cast("plugins", flags.get("plugins", ()), "tuple[str, ...]", "--plugin")
    load_plugins(plugins)
    check_plugins(file.get("plugins", ()), {*plugins, *registry.loaded()}, where)
    name, table = _find_preset(algo, env, wish) if algo in registry.names("algo") else ("none", {})
    preset = {key: value for key, value in table.items() if key not in PRESET_NOTES}
    layers = [_sort(preset, algo, env, f"preset {algo}/{name}"), _sort(file, algo, env, where, flat=False),
              _sort(flags, algo, env, "", flag=True)]
    for layer in layers:
        if layer.algorithm.get("horizon") == layer.plan.get("steps", math.nan):  # it followed the budget, and still does
            del layer.algorithm["horizon"]
    plan = _merge(layers, algo, {"preset": name, "plugins": plugins})
    used = [registry.provider(kind, str(value)) for kind, value in
            (("algo", plan.algo), ("env", plan.env), ("net", plan.algorithm.get("net", "")))]
    # what an installed package provides is written down like a plugin that was named: the run cannot go on without it
    plan = dataclasses.replace(plan, plugins=tuple(dict.fromkeys((*plugins, *(plugin for plugin in used if plugin)))))
    # under a budget in episodes or minutes, schedules keep the steps of the layer below: those they were tuned for
    horizon = plan.steps or next((layer.plan["steps"] for layer in reversed(layers) if layer.plan.get("steps")), 0)
    if plan.algorithm.get("horizon") in plan_module.NO_HORIZON and horizon:
        plan.algorithm["horizon"] = float(horizon)
    plan_module.check_horizon(plan)
    _check_together(plan)
    score = f", scored {table['score']}" if "score" in table else ""
    return plan, f"preset {algo}/{name}{score}" if table else f"no preset: defaults of {algo}"


def _merge(layers: list[Layer], algo: str, recorded: dict[str, Any]) -> Plan:
    """Later layers win; a budget replaces all budgets below it."""
    values: dict[str, Any] = {}
    algorithm = {item.name: item.default for item in fields("algo", algo) if item.default is not COMPUTED}
    env_options: dict[str, Any] = {}
    for layer in layers:
        if any(name in layer.plan for name in BUDGETS):
            values = {key: value for key, value in values.items() if key not in BUDGETS}
        values.update(layer.plan)
        algorithm.update(layer.algorithm)
        env_options.update(layer.env_options)
    if not any(name in values for name in BUDGETS):
        values["steps"] = DEFAULT_STEPS
    for key, value in algorithm.items():
        if value is REQUIRED:
            raise ConfigError(f"{algo} needs a value for {key}: give --{key.replace('_', '-')}")
    if registry.home_room("algo", algo) == "tabular":
        values |= lanes_of_tables(values)
    plan = Plan(**{**values, **recorded, "algo": algo}, algorithm=algorithm, env_options=env_options)
    plan_module.check(plan)
    return plan


def _check_together(plan: Plan) -> None:
    """What no field can be refused for alone."""
    algorithm = plan.algorithm
    for kind, name in (("runtime", plan.runtime), ("net", algorithm.get("net", ""))):
        known = [*registry.names(kind), *(["auto"] if kind == "net" else [])]
        if name and name not in known:
            raise MissingError(f"unknown {kind} {show(name)}{nearest(name, known)}")
    if algorithm.get("correction", "vtrace") == "vtrace" and algorithm.get("c_bar", 0.0) > algorithm.get("rho_bar", math.inf):
        raise ConfigError(f"c_bar = {algorithm['c_bar']:g} is more than rho_bar = {algorithm['rho_bar']:g}; V-trace wants it at most as "
                          f"high: try --c-bar {algorithm['rho_bar']:g}")
    if "num_steps" in algorithm and "num_minibatches" in algorithm:
        steps, parts = algorithm["num_steps"], algorithm["num_minibatches"]
        if "memory_size" in algorithm and plan.num_envs % parts:  # minibatches of whole columns
            ways = " or ".join(f"--num-envs {n}" for n in _fitting(plan, parts))
            raise ConfigError(f"num_envs = {plan.num_envs} does not divide into num_minibatches = {parts} sets of columns; try {ways}")
        if plan.num_envs * steps % parts:
            ways = " or ".join(f"--num-envs {n}" for n in _fitting(plan, parts // math.gcd(parts, steps)))
            raise ConfigError(f"num_envs × num_steps = {plan.num_envs} × {steps} does not divide into num_minibatches = {parts}; "
                              f"try {ways}")


def _fitting(plan: Plan, base: int) -> list[int]:
    """The numbers of environments next to the plan's that are multiples of ``base`` and of their lane's size."""
    unit = math.lcm(base, plan.lane_envs or 8)
    below = plan.num_envs // unit * unit
    one_lane = [] if plan.lane_envs else list(range(base, 8, base))  # fewer than 8 are a lane of their own
    fits = [0, *one_lane, below, below + unit]
    return [n for n in (max(n for n in fits if n < plan.num_envs), min(n for n in fits if n > plan.num_envs)) if n]


# the run's own record ----------------------------------------------------------------------------------------------


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """A plan as the plain data of ``config.toml``; tables last, as TOML wants them."""
    data = {item.name: plain(item.name, getattr(plan, item.name), "") for item in dataclasses.fields(plan)}
    return {key: data[key] for key in sorted(data, key=lambda key: key in _TABLES)}


def plan_from_dict(data: Mapping[str, Any], where: str = "config.toml") -> Plan:
    """The plan that was written, value by value. Its plugins must have been loaded; a field it lacks has its default."""
    algo, env = (_one_line(name, data.get(name, default), where) for name, default in (("algo", Plan.algo), ("env", Plan.env)))
    for name in (algo, env):
        if name.startswith("object:"):
            what = name.removeprefix("object:")
            raise ConfigError(f"{what} was given as an object without a name; register it to use its run again")
    plan = _merge([_sort(data, algo, env, where, flat=False)], algo, {})
    _check_together(plan)
    return plan
