"""The flags of the command line, made from the fields of the plan and of the algorithm. No JAX here."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from shoal import fields as settings
from shoal import registry
from shoal.errors import ConfigError, nearest
from shoal.fields import Field

_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
_SPECIAL = {"plugins": ("--plugin", "MODULE"), "env_options": ("--env-option", "KEY=VALUE")}
_NOT_FLAGS = ("algo", "env", "algorithm")
_METAVAR = {"int": "N", "float": "X"}
_BARE = ("--algo", "--env", "--dir")  # what stands without a flag
RENDERS = ("text", "rgb", "gif")


class Parser(argparse.ArgumentParser):
    """Flags only: other arguments are left over. Refuses with a ConfigError instead of leaving the process."""

    def __init__(self, usage: str, description: str) -> None:
        super().__init__(prog="shoal", usage=usage, description=description, add_help=False, allow_abbrev=False,
                         argument_default=argparse.SUPPRESS)
        self.add_argument("-h", "--help", action="store_true", help="Show this and exit.")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def split(self, argv: list[str]) -> tuple[dict[str, Any], list[str], list[str]]:
        """The flags given, the other arguments in order, and the flags that are not known."""
        known, rest = self.parse_known_args(_join_negative(argv))
        unknown = [item for item in rest if item.startswith("-") and item != "--"]
        return vars(known), [item for item in rest if not item.startswith("-")], unknown

    def parse(self, argv: list[str], most: int) -> tuple[dict[str, Any], list[str]]:
        """The same, refusing unknown flags and more than ``most`` other arguments."""
        given, names, unknown = self.split(argv)
        if unknown:
            flag = unknown[0].split("=")[0]
            hint = f"; usage: {self.usage}" if flag in _BARE else nearest(flag, self.flags())
            raise ConfigError(f"unknown flag {flag}{hint}")
        if len(names) > most and "help" not in given:
            raise ConfigError(f"unexpected argument {names[most]!r}; usage: {self.usage}")
        return given, names

    def flags(self) -> list[str]:
        return [text for action in self._actions for text in action.option_strings if text.startswith("--")]


def _join_negative(argv: list[str]) -> list[str]:
    """``--flag -1e-3`` → ``--flag=-1e-3``, which argparse would take for a flag of its own."""
    joined: list[str] = []
    for item in argv:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and _NEGATIVE.match(item):
            joined[-1] += f"={item}"
        else:
            joined.append(item)
    return joined


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value != "" else "empty"


def _add(group: argparse._ArgumentGroup, item: Field) -> None:
    """One field as a flag. Values stay text: they are read once the algorithm is known."""
    unknown = item.default is settings.REQUIRED or item.default is settings.COMPUTED
    help_text = item.help if unknown else f"{item.help} (default: {_written(item.default)})"
    help_text = help_text.replace("%", "%%").strip()
    if item.name in _SPECIAL:
        flag, metavar = _SPECIAL[item.name]
        group.add_argument(flag, dest=item.name, metavar=metavar, action="append", help=f"{item.help} (repeatable)")
    elif item.type == "bool":
        group.add_argument(flag_of(item.name), dest=item.name, action="store_const", const="true", help=help_text)
        group.add_argument(f"--no-{item.name.replace('_', '-')}", dest=item.name, action="store_const", const="false",
                           help=argparse.SUPPRESS if item.default is False else f"Turn {flag_of(item.name)} off.")
    else:
        metavar = "A,B,…" if item.type.startswith("tuple") else _METAVAR.get(item.type, "VALUE")
        group.add_argument(flag_of(item.name), dest=item.name, metavar=metavar, help=help_text)


def _add_output(parser: Parser, *, json: bool = True) -> None:
    group = parser.add_argument_group("output")
    if json:
        group.add_argument("--json", action="store_true", help="End with one JSON object on the last line of stdout.")
    group.add_argument("--quiet", action="store_true", help="No progress display.")


def train_parser(algos: list[str]) -> Parser:
    """Every field of the plan, and every field of the algorithms named."""
    shown = algos[0] if len(algos) == 1 else "ALGO"
    parser = Parser(f"shoal train {shown} ENV [flags]", "Train a policy. `shoal list algos` and `shoal list envs` say on what. "
                    "Flags win over --config, which wins over the preset.")
    run = parser.add_argument_group("the run")
    own = [item for item in settings.plan_fields() if item.name not in _NOT_FLAGS]
    for item in own:
        _add(run, item)
    run.add_argument("--config", metavar="FILE", help="Settings from a TOML file: keys as these flags, and a table [algorithm].")
    run.add_argument("--out", metavar="DIR", help="The run folder itself (default: a new one under runs/).")
    _add_output(parser)
    taken = {item.name for item in own} | {"config", "out", "json", "quiet", "help"}
    for algo in algos:
        known = settings.describe("algo", algo)
        group = parser.add_argument_group(algo, known.summary.replace("%", "%%"))
        for item in known.fields:
            if item.name not in taken:
                _add(group, item)
        taken |= {item.name for item in known.fields}
    return parser


def resume_parser() -> Parser:
    parser = Parser("shoal resume DIR [flags]", "Continue a run exactly where its newest checkpoint stands.")
    group = parser.add_argument_group("the run")
    group.add_argument("--steps", metavar="MORE", help="Environment steps to add to the budget (default: what is left of it).")
    group.add_argument("--inexact-resume", action="store_true",
                       help="Start a new episode where an environment cannot be brought back to where it stood.")
    _add(group, Field("plugins", "tuple[str, ...]", (), "Module of yours that the run needs."))
    _add_output(parser)
    return parser


def eval_parser() -> Parser:
    parser = Parser("shoal eval DIR [flags]", "Score the final policy of a run.")
    group = parser.add_argument_group("the evaluation")
    group.add_argument("--episodes", metavar="N", help="Episodes to play (default: 100).")
    group.add_argument("--sampled", action="store_true", help="Draw actions from the policy instead of taking its best.")
    group.add_argument("--seed", metavar="N", help="Seed of the evaluation (default: the run's own).")
    group.add_argument("--render", metavar="HOW", help="Show one episode instead of scoring: text (in the terminal), rgb (PNG files in "
                       "DIR/render) or gif (DIR/render/episode.gif).")
    group.add_argument("--gap", action="store_true", help="Instead of playing, say how far the policy's exact value is from the optimum: "
                       "for worlds with a model, and for games.")
    group.add_argument("--max-frames", metavar="N", help="Show at most this many frames (default: 500).")
    _add(group, Field("plugins", "tuple[str, ...]", (), "Module of yours that the run needs."))
    group.add_argument("--json", action="store_true", help="End with one JSON object on the last line of stdout.")
    return parser


def list_parser() -> Parser:
    parser = Parser("shoal list envs|algos|runtimes [flags]", "What can be named on the command line.")
    _add(parser.add_argument_group("more"), Field("plugins", "tuple[str, ...]", (), "Module of yours whose names to include."))
    return parser


def check_env_parser() -> Parser:
    parser = Parser("shoal check-env ENV [flags]", "Play an environment and say what conforms, what does not, and what shoal "
                    "does about it. Exit code 0: it conforms; 1: it has defects; 2: it cannot be checked.")
    group = parser.add_argument_group("the check")
    group.add_argument("--episodes", metavar="N", help="Episodes to play at random (default: 10).")
    group.add_argument("--seed", metavar="N", help="Seed of the check (default: 0).")
    _add(group, Field("env_options", "dict[str, Any]", {}, "Argument for the environment."))
    _add(group, Field("plugins", "tuple[str, ...]", (), "Module of yours that registers the environment."))
    group.add_argument("--json", action="store_true", help="One JSON object instead of lines.")
    return parser


def solve_parser() -> Parser:
    parser = Parser("shoal solve ENV [flags]", "The exact optimum of an environment whose model is known, by value iteration; of a game, "
                    "by minimax.")
    group = parser.add_argument_group("the problem")
    group.add_argument("--discount", metavar="X", help="How much less a reward is worth one step later (default: 0.99).")
    group.add_argument("--max-episode-steps", metavar="N", help="Steps after which an episode ends (default: the environment's own).")
    _add(group, Field("env_options", "dict[str, Any]", {}, "Argument for the environment."))
    _add(group, Field("plugins", "tuple[str, ...]", (), "Module of yours that registers the environment."))
    group.add_argument("--json", action="store_true", help="One JSON object instead of lines.")
    return parser


def play_parser() -> Parser:
    parser = Parser("shoal play GAME [DIR] [flags]", "Play against the policy of a run, or against perfect play where none is named.")
    group = parser.add_argument_group("the game")
    group.add_argument("--second", action="store_true", help="Let the other side move first.")
    return parser


def doctor_parser() -> Parser:
    parser = Parser("shoal doctor [flags]", "What is installed, what shoal will use, and the command that adds what is missing. "
                    "Trains nothing. Exit code 0: the core is fine; 1: it is not.")
    parser.add_argument_group("output").add_argument("--json", action="store_true", help="One JSON object instead of lines.")
    return parser


def trace_parser() -> Parser:
    parser = Parser("shoal trace DIR [flags]", "Where the time of a run went, from the timeline that `shoal train … --trace` writes; and "
                    "DIR/trace.json, which trace viewers (ui.perfetto.dev, chrome://tracing) open.")
    parser.add_argument_group("output").add_argument("--json", action="store_true", help="One JSON object instead of a table.")
    return parser


def find_algo(argv: list[str]) -> tuple[str | None, str | None, list[str]]:
    """Algorithm, config file and plugins named in ``argv``, before the flags of that algorithm are known."""
    given, names, unknown = train_parser(registry.names("algo")).split(argv)
    # a value behind an unknown flag would pass for the algorithm; the flag is refused later, and first
    algo = next((name for name in names if known_as(name) in registry.names("algo")), None) if unknown else (names[0] if names else None)
    return known_as(algo) if algo else None, given.get("config"), given.get("plugins", [])


def known_as(algo: str) -> str:
    """An algorithm's name as it is registered: ``q-learning`` is ``q_learning``."""
    plain = algo.replace("-", "_")
    return plain if algo not in registry.names("algo") and plain in registry.names("algo") else algo


def typed(given: dict[str, Any], algo: str) -> dict[str, Any]:
    """What was typed, as the fields' own types."""
    known = {item.name: item for item in (*settings.describe("algo", algo).fields, *settings.plan_fields())}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name == "plugins":
            values[name] = tuple(text)
        elif name == "env_options":
            values[name] = env_options(given)
        elif name in known:
            values[name] = settings.parse(name, text, known[name].type, flag_of(name))
    return values


def env_options(given: dict[str, Any]) -> dict[str, Any]:
    """The environment's own arguments among what was typed."""
    return dict(map(_option, given.get("env_options", [])))


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (equals and key):
        raise ConfigError(f"--env-option {text!r}: expected KEY=VALUE")
    return key.strip(), settings.parse_literal(value)


def choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    """One of ``choices`` behind a flag."""
    if text not in choices:
        hint = nearest(text, choices)
        close = hint if hint.startswith("; did") else ""
        raise ConfigError(f"{name} = {text!r}: expected one of {', '.join(choices)}{close} ({flag_of(name)})")
    return text


def count(name: str, text: str, least: int = 1) -> int:
    """A whole number of at least ``least`` behind a flag."""
    value = settings.parse(name, text, "int", flag_of(name))
    if value < least:
        raise ConfigError(f"{name} = {value}: expected a number of at least {least} ({flag_of(name)})")
    return value
