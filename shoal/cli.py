"""The command line. Input is checked here, without JAX; only what is known to be good reaches ``shoal.api``."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal import config, flags, registry, signals
from shoal import fields as settings
from shoal.errors import ConfigError, MissingError, ShoalError, nearest
from shoal.plan import free_folder

_HELP = """usage: shoal COMMAND [arguments]

Parallel and distributed reinforcement learning, from a Q-table to a cluster.

commands:
  train ALGO ENV    train a policy, e.g. `shoal train ppo cartpole`
  resume DIR        continue a run exactly where it stopped
  eval DIR          score the final policy of a run
  trace DIR         where the time of a run went
  solve ENV         the exact optimum, where the environment's model is known
  play GAME [DIR]   play against a trained policy, or against perfect play
  list WHAT         what there is: envs, algos or runtimes
  check-env ENV     whether an environment keeps its side, and what shoal does where it does not
  doctor            versions, devices, extras, and the command that adds what is missing

  shoal COMMAND --help      every flag of a command
  shoal train ALGO --help   every flag of training with an algorithm, its own fields included
  shoal --version
"""
_LISTS = {"envs": "env", "algos": "algo", "runtimes": "runtime"}


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code: 0, 2 for bad input, 1 for a run that failed, 130 or 143 for one stopped by a signal."""
    try:
        if "SHOAL_FAULT" in os.environ:  # set by tests only, to make this process fail or die at a chosen point
            from shoal.testing import faults

            faults.arm_from_env()
        with signals.start_up():
            code = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except ShoalError as error:
        sys.stderr.write(f"shoal: error: {' '.join(str(error).split())}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `shoal list envs | head`; the interpreter would complain again when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(argv: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train, "resume": _resume, "eval": _eval, "trace": _trace, "list": _list, "solve": _solve, "play": _play,
        "check-env": _check_env, "doctor": _doctor}
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _say(_HELP.rstrip())
    if argv[0] == "--version":
        return _say(f"shoal {_version()}")
    if argv[0] not in commands:
        what = "flag" if argv[0].startswith("-") else "command"
        raise ConfigError(f"unknown {what} {argv[0]!r}{nearest(argv[0], [*commands, '--help', '--version'])}")
    return commands[argv[0]](argv[1:])


def _version() -> str:
    try:
        return importlib.metadata.version("shoal")
    except importlib.metadata.PackageNotFoundError:
        import shoal

        return getattr(shoal, "__version__", "(not installed)")


def _say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


# commands ----------------------------------------------------------------------------------------------------------


def _train(argv: list[str]) -> int:
    _, _, plugins = flags.find_algo(argv)
    config.load_plugins(plugins)
    algo, file, _ = flags.find_algo(argv)
    wants_help = "--help" in argv or "-h" in argv
    if algo is None and file is not None and not wants_help:
        algo = settings.cast("algo", config.read(file).get("algo", ""), "str", file) or None
    if algo is not None and algo not in registry.names("algo"):
        hint = nearest(algo, registry.names("algo"))
        if algo in registry.names("env"):
            hint = f": that is an environment; try `shoal train {registry.names('algo')[0]} {algo}`"
        raise MissingError(f"unknown algo {algo!r}{hint}")
    parser = flags.train_parser([algo] if algo else registry.names("algo"))
    given, names = parser.parse(argv, most=2)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    if algo is None:
        raise ConfigError("train: which algorithm, on which environment? e.g. `shoal train ppo cartpole`, or --config FILE")
    values = {**flags.typed(given, algo), **dict(zip(("algo", "env"), [*map(flags.known_as, names[:1]), *names[1:]], strict=False))}
    if "env" not in values and not (file and "env" in config.read(file)):
        raise ConfigError(f"train {algo}: on which environment? e.g. `shoal train {algo} cartpole`; see `shoal list envs`")
    plan, note = config.resolve(values, file)
    from shoal import api

    follows = plan.runtime == "mpi" and api.follows(plan)
    out = given.get("out") if follows else _run_folder(given["out"] if "out" in given else str(free_folder(plan)))
    if not given.get("quiet", False) and not follows:
        _say(note)
        sys.stdout.flush()
    return _report(api.run_train(plan, out, given.get("quiet", False), note), given.get("json", False))


def _resume(argv: list[str]) -> int:
    parser = flags.resume_parser()
    given, names = parser.parse(argv, most=1)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    more = flags.count("steps", given["steps"]) if "steps" in given else 0
    folder = _existing_run("resume", names, given)
    from shoal import api

    result = api.run_resume(folder, more, given.get("inexact_resume", False), given.get("quiet", False))
    return _report(result, given.get("json", False))


def _eval(argv: list[str]) -> int:
    parser = flags.eval_parser()
    given, names = parser.parse(argv, most=1)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    episodes = flags.count("episodes", given["episodes"]) if "episodes" in given else 100
    seed = flags.count("seed", given["seed"], least=0) if "seed" in given else None
    render = flags.choice("render", given["render"], flags.RENDERS) if "render" in given else ""
    frames = flags.count("max_frames", given["max_frames"]) if "max_frames" in given else 500
    if render and "episodes" in given:
        raise ConfigError("--episodes is for scores; --render shows one episode")
    if "max_frames" in given and not render:
        raise ConfigError("--max-frames goes with --render")
    if given.get("gap", False) and (render or given.keys() & {"episodes", "sampled", "seed"}):
        raise ConfigError("--gap plays nothing: leave --episodes, --sampled, --seed and --render out")
    folder = _existing_run("eval", names, given)
    from shoal import api

    if given.get("gap", False):
        found = api.run_gap(folder)
        return _say(_as_json(found) if given.get("json", False) else "\n".join(api.gap_lines(found)))
    if render:
        shown = api.run_render(folder, render, given.get("sampled", False), seed, frames, _show_shot)
        return _say(_as_json(shown)) if given.get("json", False) else _say(_about(shown))
    result = api.run_eval(folder, episodes, given.get("sampled", False), seed)
    if given.get("json", False):
        return _say(_as_json(result))
    kind = "sampled" if given.get("sampled", False) else "greedy"
    mean, std, low, high = (_number(result[f"{name}_return"]) for name in ("mean", "std", "min", "max"))
    return _say(f"mean return {mean} ± {std} (from {low} to {high}) over {result['episodes']} {kind} episodes")


def _show_shot(shot: Any) -> None:
    """One frame in the terminal: each in the place of the last, or below it where the output is no terminal."""
    screen = sys.stdout.isatty()
    begin, end = ("\x1b[H\x1b[2J", "\n") if screen else ("", "\n\n")
    counts = f"step {shot.step}  reward {_number(shot.reward)}  return {_number(shot.total)}"
    sys.stdout.write(f"{begin}{shot.picture.rstrip()}\n{counts}{end}")
    sys.stdout.flush()
    if screen:
        time.sleep(0.05)


def _about(shown: dict[str, Any]) -> str:
    ending = "" if shown["over"] else " (cut: --max-frames)"
    where = f"; written to {shown['path']}" if shown["path"] else ""
    return f"return {_number(shown['episode_return'])} in {shown['length']} steps{ending}; {shown['frames']} frames{where}"


def _trace(argv: list[str]) -> int:
    parser = flags.trace_parser()
    given, names = parser.parse(argv, most=1)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    if not names:
        raise ConfigError("trace: which run? e.g. `shoal trace runs/…`")
    from shoal.monitor import timeline

    spans = timeline.read(Path(names[0]))
    path, found = timeline.draw(Path(names[0]), spans), timeline.shares(spans)
    if given.get("json", False):
        return _say(_as_json({"path": str(path), "shares": [share._asdict() for share in found]}))
    return _say("\n".join([*timeline.lines(found), f"timeline: {path}"]))


def _solve(argv: list[str]) -> int:
    parser = flags.solve_parser()
    given, names = parser.parse(argv, most=1)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    if not names:
        raise ConfigError("solve: which environment? e.g. `shoal solve FrozenLake-v1`")
    discount = settings.parse("discount", given["discount"], "float", "--discount") if "discount" in given else 0.99
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount = {discount}: expected a number from 0 to 1 (--discount)")
    steps = flags.count("max_episode_steps", given["max_episode_steps"], least=0) if "max_episode_steps" in given else 0
    config.load_plugins(given.get("plugins", []))
    from shoal.tabular import command

    result = command.run_solve(names[0], flags.env_options(given), discount, steps)
    return _say(_as_json(result) if given.get("json", False) else "\n".join(command.lines(result)))


def _play(argv: list[str]) -> int:
    parser = flags.play_parser()
    given, names = parser.parse(argv, most=2)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    if not names:
        raise ConfigError("play: which game? e.g. `shoal play tictactoe`")
    if len(names) > 1:
        _existing_run("play", names[1:], given)
    from shoal import api

    return api.run_play(names[0], names[1] if len(names) > 1 else "", given.get("second", False), input, _say)


def _list(argv: list[str]) -> int:
    parser = flags.list_parser()
    given, names = parser.parse(argv, most=1)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    if not names or names[0] not in _LISTS:
        got = f", not {names[0]!r}{nearest(names[0], _LISTS)}" if names else ""
        raise ConfigError(f"list: expected envs, algos or runtimes{got}")
    config.load_plugins(given.get("plugins", []))
    kind = _LISTS[names[0]]
    width = max(map(len, registry.names(kind))) + 2
    lines = [f"{name:<{width}}{settings.describe(kind, name).summary}".rstrip() for name in registry.names(kind)]
    if kind == "env":
        from shoal.envs import gymnasium

        lines += ["", f"and {len(gymnasium.ids())} Gymnasium environments, each by its id: `shoal train ppo CartPole-v1`"]
    elif kind == "algo":
        lines += ["", "`shoal train ALGO --help` shows every field of one"]
    return _say("\n".join(lines))


def _check_env(argv: list[str]) -> int:
    parser = flags.check_env_parser()
    given, names = parser.parse(argv, most=1)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    if not names:
        raise ConfigError("check-env: which environment? e.g. `shoal check-env CartPole-v1`; see `shoal list envs`")
    episodes = flags.count("episodes", given["episodes"]) if "episodes" in given else 10
    seed = flags.count("seed", given["seed"], least=0) if "seed" in given else 0
    options = flags.env_options(given)
    config.load_plugins(given.get("plugins", []))
    from shoal.envs import build

    build.check_name(names[0])
    from shoal.runtime import device
    from shoal.testing import check_env, findings

    device.prepare("cpu", 1)  # what is checked does not depend on it, and it starts at once
    found = check_env(names[0], options=options, episodes=episodes, seed=seed)
    _say(findings.as_json(names[0], found) if given.get("json", False) else "\n".join(findings.lines(names[0], found)))
    return 0 if findings.conforms(found) else 1


def _doctor(argv: list[str]) -> int:
    parser = flags.doctor_parser()
    given, _ = parser.parse(argv, most=0)
    if "help" in given:
        return _say(parser.format_help().rstrip())
    from shoal import doctor

    report = doctor.examine()
    _say(_as_json(report) if given.get("json", False) else "\n".join(doctor.lines(report)))
    return 0 if report["fine"] else 1


# folders -----------------------------------------------------------------------------------------------------------


def _run_folder(out: str) -> str:
    """``out``, if a run can be written there."""
    path = Path(out)
    if not out.strip() or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise ConfigError(f"out = {settings.show(out)}: expected the name of a folder (--out)")
    if os.path.isdir(path) and _names_in(path):
        way = f"continue it with `shoal resume {out}`" if (path / "config.toml").is_file() else "name a new or empty one"
        raise ConfigError(f"out = {out!r}: the folder is not empty; {way}")
    parent = path.absolute()
    while not os.path.lexists(parent):
        parent = parent.parent
    if not os.path.isdir(parent):
        raise ConfigError(f"out = {out!r}: {str(parent)!r} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"out = {out!r}: {str(parent)!r} cannot be written to; choose another --out")
    return out


def _names_in(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _existing_run(command: str, names: list[str], given: dict[str, Any]) -> str:
    """The run folder named, if it is one whose plan can be read."""
    if not names:
        raise ConfigError(f"{command}: which run? e.g. `shoal {command} runs/…`")
    folder = Path(names[0])
    if not os.path.isfile(folder / "config.toml"):
        if os.path.isdir(folder):
            raise MissingError(f"no run at {names[0]!r}: it has no config.toml")
        beside = _names_in(folder.parent) if os.path.isdir(folder.parent) else []
        runs = [name for name in beside if os.path.isfile(folder.parent / name / "config.toml")]
        raise MissingError(f"no run at {names[0]!r}: no such folder{nearest(folder.name, runs)}")
    where = str(folder / "config.toml")
    data = config.read(where)
    plugins = given.get("plugins", [])
    config.load_plugins(plugins)
    config.check_plugins(data.get("plugins", []), {*plugins, *registry.loaded()}, where)
    config.plan_from_dict(data, where)
    return names[0]


# results -----------------------------------------------------------------------------------------------------------


def _report(result: dict[str, Any], as_json: bool) -> int:
    """What training came to, for a reader or a program; the exit code."""
    if as_json:
        _say(_as_json(result))
        return int(result.get("exit_code", 0))
    lines = [str(result["curve"]), ""] if result.get("curve") else []
    lines.append(f"{result['algo']} on {result['env']}: {result['steps']:,} steps, {result['episodes']:,} episodes, "
                 f"{result['updates']:,} updates in {_number(result['wall_s'])} s ({_number(result['steps_per_s'])} steps/s)")
    lines.append(f"score {_number(result['eval_return'])} (greedy evaluation); "
                 f"last training episodes {_number(result['mean_return'])}")
    if result.get("stopped_by") and result["stopped_by"] not in config.BUDGETS:
        lines.append(f"stopped by {result['stopped_by']}")
    folder = result["run_dir"]
    more = "" if result.get("exit_code", 0) else f" --steps {result['steps']}"  # a run that was interrupted has budget left
    lines += [f"run folder: {folder}", f"next: shoal eval {shlex.quote(folder)} --episodes 100",
              f"      shoal resume {shlex.quote(folder)}{more}"]
    _say("\n".join(lines))
    return int(result.get("exit_code", 0))


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _as_json(result: dict[str, Any]) -> str:
    """One line; what is not a finite number is null."""
    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [clean(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean({key: value for key, value in result.items() if key != "curve"}), default=str)
