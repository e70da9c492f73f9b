"""Fields are read from source: names, types, defaults, help and bounds."""

from __future__ import annotations

import dataclasses
import math
import sys

import pytest

from shoal import config, fields, registry
from shoal.errors import ConfigError, MissingError

TINY = '''
import a_module_that_does_not_exist  # reading must not import

@decorated
class Tiny:
    """Tiny, for tests.

    More text.
    """
    num_steps: int = 8
    """Steps per chunk."""
    num_minibatches: int = 4
    rate: float = 2.5e-4
    """Rate, 50% of it."""
    limit: float = float("inf")
    low: float = -1.5
    also: "float" = math.inf
    angle: float = 4 * math.pi
    hidden: tuple[int, ...] = (64, 64)
    names: tuple[str, ...] = ()
    flag: bool = True
    kind: str = "adam"
    rate_schedule: str = "constant"
    horizon: float = 0.0
    made: float = make()
    RANGES: ClassVar[dict] = {"rate": (0, inf), "hidden": (1, 512), "low": (-2, -1)}
    CHOICES = {"kind": ("adam", "sgd")}
    _hidden: int = 3

    def method(self): ...
'''


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    (tmp_path / "tiny_algo.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.BUILTIN["algo"], "tiny", "tiny_algo:Tiny")
    fields._describe_source.cache_clear()
    return "tiny"


def test_source_is_read_not_imported(tiny):
    found = {item.name: item for item in config.fields("algo", tiny)}
    assert list(found) == [
        "num_steps",
        "num_minibatches",
        "rate",
        "limit",
        "low",
        "also",
        "angle",
        "hidden",
        "names",
        "flag",
        "kind",
        "rate_schedule",
        "horizon",
        "made",
    ]
    assert found["num_steps"] == ("num_steps", "int", 8, "Steps per chunk.")
    assert found["num_minibatches"].help == ""
    assert found["rate"].help == "Rate, 50% of it."
    assert found["limit"].default == found["also"].default == math.inf and found["also"].type == "float"
    assert found["low"].default == -1.5 and found["angle"].default == 4 * math.pi
    assert found["hidden"] == ("hidden", "tuple[int, ...]", (64, 64), "")
    assert found["names"].default == () and found["flag"].default is True
    assert found["made"].default is fields.COMPUTED
    known = fields.describe("algo", tiny)
    assert known.ranges == {"rate": (0, math.inf), "hidden": (1, 512), "low": (-2, -1)}
    assert known.choices == {"kind": ("adam", "sgd")}
    assert known.summary == "Tiny, for tests."
    assert "tiny_algo" not in sys.modules


def test_resolved_algorithm_is_complete_and_bounded(tiny):
    plan, _ = config.resolve({"algo": tiny, "env": "cartpole", "rate": 1})
    assert plan.algorithm == {
        "num_steps": 8,
        "num_minibatches": 4,
        "rate": 1.0,
        "limit": math.inf,
        "low": -1.5,
        "also": math.inf,
        "angle": 4 * math.pi,
        "hidden": (64, 64),
        "names": (),
        "flag": True,
        "kind": "adam",
        "rate_schedule": "constant",
        "horizon": 100_000.0,
    }
    for bad, text in (
        ({"rate": -1e-9}, "rate = -1e-09: expected a number of at least 0"),
        ({"hidden": (64, 0)}, "from 1 to 512"),
        ({"low": 0.0}, "low = 0.0: expected a number from -2 to -1"),
        ({"num_minibatches": 0}, "at least 1"),
        ({"kind": "adm"}, "did you mean 'adam'"),
        ({"rat": 1.0}, "did you mean 'rate'"),
        ({"flag": 1}, "true or false"),
    ):
        with pytest.raises(ConfigError, match=text):
            config.resolve({"algo": tiny, "env": "cartpole", **bad})


def test_every_builtin_says_what_its_fields_are():
    for kind in ("algo", "env"):
        for name in registry.BUILTIN[kind]:
            known = fields.describe(kind, name)
            assert known.summary, name
            for item in known.fields:
                assert item.help.endswith("."), (name, item.name)
                assert item.default is not fields.COMPUTED and item.default is not fields.REQUIRED, (name, item.name)
            names = {item.name for item in known.fields}
            assert set(known.ranges) <= names and set(known.choices) <= names, name


def test_source_agrees_with_the_class():
    from shoal.algos.ppo import PPO
    from shoal.plan import Plan

    for cls, read in (
        (PPO, config.fields("algo", "ppo")),
        (Plan, [item for item in fields.plan_fields() if "dict" not in item.type]),
    ):
        own = {item.name: item.default for item in dataclasses.fields(cls)}
        assert {item.name: item.default for item in read} == {name: own[name] for name in (item.name for item in read)}
    assert [item.name for item in config.fields("algo", "ppo")] == [item.name for item in dataclasses.fields(PPO)]
    for name, table in (("ranges", "RANGES"), ("choices", "CHOICES")):  # what a class extends bounds it too
        whole = {key: bound for base in reversed(PPO.__mro__) for key, bound in vars(base).get(table, {}).items()}
        assert getattr(fields.describe("algo", "ppo"), name) == whole and "learning_rate_schedule" in whole or table == "RANGES"


@dataclasses.dataclass(frozen=True)
class Mine:
    """My world."""

    size: int = 3
    """Cells."""
    speeds: tuple[float, ...] = dataclasses.field(default_factory=lambda: (1.0, 2.0))
    RANGES = {"size": (2, 9)}


def open_world(size: int = 3, **more):
    return size, more


def test_user_classes_and_functions(monkeypatch):
    monkeypatch.setitem(registry._added["env"], "mine", Mine)
    monkeypatch.setitem(registry._added["env"], "open_world", open_world)
    assert config.fields("env", "mine") == [("size", "int", 3, "Cells."), ("speeds", "tuple[float, ...]", (1.0, 2.0), "")]
    assert config.fields("env", "open_world") == [("size", "int", 3, "")]
    plan, _ = config.resolve({"env": "mine", "env_options": {"size": 4.0, "speeds": [1, 2]}})
    assert plan.env_options == {"size": 4, "speeds": (1.0, 2.0)}
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        config.resolve({"env": "mine", "env_options": {"siz": 4}})
    with pytest.raises(ConfigError, match="from 2 to 9"):
        config.resolve({"env": "mine", "env_options": {"size": 10}})
    plan, _ = config.resolve({"env": "open_world", "env_options": {"anything": [1, "a"]}})
    assert plan.env_options == {"anything": [1, "a"]}
    with pytest.raises(MissingError, match="unknown algo 'mine'"):
        config.fields("algo", "mine")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1e6", "int", 1_000_000),
        ("200_000", "int", 200_000),
        ("-3", "int", -3),
        ("7.0", "int", 7),
        ("1e-3", "float", 0.001),
        ("5", "float", 5.0),
        ("inf", "float", math.inf),
        ("64,64", "tuple[int, ...]", (64, 64)),
        ("[8, 9]", "tuple[int, ...]", (8, 9)),
        ("", "tuple[int, ...]", ()),
        ("a,b", "tuple[str, ...]", ("a", "b")),
        ("true", "bool", True),
        ("text", "str", "text"),
    ],
)
def test_parse(text, kind, value):
    parsed = fields.parse("x", text, kind)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1.5", "int"),
        ("many", "int"),
        ("nan", "int"),
        ("inf", "int"),
        ("1e400", "int"),
        ("9" * 5000, "int"),
        ("", "int"),
        ("nan", "float"),
        ("fast", "float"),
        ("64,,64", "tuple[int, ...]"),
        ("64,x", "tuple[int, ...]"),
        ("maybe", "bool"),
        ("1e30", "int"),
        ("\udcff", "str"),
    ],
)
def test_parse_refuses(text, kind):
    with pytest.raises(ConfigError, match="^x = .*: expected .* \\(--x\\)$"):
        fields.parse("x", text, kind, "--x")


def test_literals():
    assert fields.parse_literal("3") == 3 and fields.parse_literal("true") is True and fields.parse_literal("[1, 2]") == [1, 2]
    assert fields.parse_literal("rgb") == "rgb" and fields.parse_literal("1\nother = 2") == "1\nother = 2"
