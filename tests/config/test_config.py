"""Layers, budgets, presets, horizons and the run's own record."""

from __future__ import annotations

import math
import random
import tomllib
from pathlib import Path

import pytest

from shoal import config, registry
from shoal import plan as plan_module
from shoal.envs.gymnasium import looks_like_id
from shoal.errors import ConfigError, MissingError
from shoal.plan import Plan
from shoal.toml import dumps_toml

OFF = {"algo": "ppo", "env": "cartpole", "preset": "none"}
BY_ALGO = {path.stem: config.read(path) for path in sorted((Path(config.__file__).parent / "presets").glob("*.toml"))}
PRESETS = BY_ALGO["ppo"]
SCORES = Path(config.__file__).parents[1] / "docs" / "scores.md"


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> str:
        path = tmp_path / "my.toml"
        path.write_text(text)
        return str(path)

    return write_file


def test_defaults_without_preset():
    plan, note = config.resolve(OFF)
    assert (plan.steps, plan.num_envs, plan.preset) == (100_000, Plan.num_envs, "none")
    assert plan.algorithm["learning_rate"] == 2.5e-4 and plan.algorithm["horizon"] == 100_000.0
    assert note == "no preset: defaults of ppo"


def test_later_layers_win(write):
    file = write(
        "seed = 3\nnum_envs = 16\n[algorithm]\nlearning_rate = 2\ndiscount = 0.5\nhidden = [32]\n[env_options]\ngravity = 9\n"
    )
    plan, _ = config.resolve({**OFF, "num_envs": 24, "discount": 0.25, "env_options": {"force": 5}}, file)
    assert (plan.seed, plan.num_envs) == (3, 24)
    assert plan.algorithm["learning_rate"] == 2.0 and plan.algorithm["discount"] == 0.25 and plan.algorithm["hidden"] == (32,)
    assert type(plan.algorithm["learning_rate"]) is float
    assert plan.env_options == {"gravity": 9.0, "force": 5.0}


@pytest.mark.parametrize(("algo", "name"), [(algo, name) for algo, tables in BY_ALGO.items() for name in tables])
def test_presets_are_sound_and_found_by_alias(algo, name):
    table = BY_ALGO[algo][name]
    plans = "mode" in table  # of how to run, for any environment: chosen by their own name only
    for env in ("CartPole-v1", "cartpole") if plans else (name, *table.get("aliases", ())):
        plan, note = config.resolve({"algo": algo, "env": env} | ({"preset": name} if plans else {}))
        assert plan.preset == name and note == f"preset {algo}/{name}" + (f", scored {table['score']}" if "score" in table else "")
        for key, value in table.items():
            if key not in config.PRESET_NOTES:
                got = plan.algorithm[key] if key in plan.algorithm else getattr(plan, key)
                assert got == (tuple(value) if isinstance(value, list) else value), key


@pytest.mark.parametrize(("algo", "name"), [(a, name) for a, tables in BY_ALGO.items() for name in tables if "score" in tables[name]])
def test_the_score_of_a_preset_is_the_measured_one(algo, name):
    """The mean over seeds of the compiled environment's row, or of Gymnasium's where the preset is for that alone, if the row was
    made by the budget that the preset names."""
    table = BY_ALGO[algo][name]
    path = "ported" if looks_like_id(name) else "fused"
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in SCORES.read_text().splitlines() if line.startswith("|")]
    (row,) = [row for row in rows if row[:3] == [algo, table.get("scored_on", name), path]]
    assert float(row[4].replace("−", "-")) == table["score"]
    assert table["steps"] <= int(row[3].replace(",", "")) < 1.05 * table["steps"]


def test_preset_choice():
    table = PRESETS["pendulum"]
    plan, _ = config.resolve({"env": "cartpole", "preset": "pendulum"})
    assert plan.preset == "pendulum" and plan.algorithm["discount"] == table["discount"]
    plan, note = config.resolve({"env": "rendezvous", "team": "shared"})
    assert plan.preset == "none" and note == "no preset: defaults of ppo"
    with pytest.raises(MissingError, match="did you mean 'pendulum'"):
        config.resolve({"env": "cartpole", "preset": "pendulu"})


def test_a_budget_replaces_those_below(write):
    file = write("episodes = 50\nminutes = 2.5\n")
    budgets = lambda plan: (plan.steps, plan.episodes, plan.minutes)  # noqa: E731
    assert budgets(config.resolve({"env": "cartpole"})[0]) == (PRESETS["cartpole"]["steps"], 0, 0.0)
    assert budgets(config.resolve({"env": "cartpole"}, file)[0]) == (0, 50, 2.5)
    assert budgets(config.resolve({"env": "cartpole", "steps": 7, "minutes": 1}, file)[0]) == (7, 0, 1.0)
    with pytest.raises(ConfigError, match="no budget"):
        config.resolve({**OFF, "steps": 0})


def test_horizon_follows_the_budget(write):
    linear = {**OFF, "learning_rate_schedule": "linear"}
    assert config.resolve({**linear, "steps": 5000})[0].algorithm["horizon"] == 5000.0
    assert config.resolve({**linear, "steps": 5000, "horizon": 9e3})[0].algorithm["horizon"] == 9000.0
    assert config.resolve({**OFF, "episodes": 5})[0].algorithm["horizon"] == math.inf
    assert config.resolve({"env": "cartpole", "minutes": 1})[0].algorithm["horizon"] == PRESETS["cartpole"]["steps"]
    with pytest.raises(ConfigError, match="learning_rate_schedule = 'linear' needs a horizon"):
        config.resolve({**linear, "episodes": 5})
    dqn = {"algo": "dqn", "preset": "none", "episodes": 5}
    for more, field in (({}, "epsilon_schedule = 'linear'"), ({"noisy": True, "prioritised": True}, "priority_beta = 0.4"),
                        ({"noisy": True, "learning_rate_schedule": "cosine"}, "learning_rate_schedule = 'cosine'")):
        with pytest.raises(ConfigError, match=f"{field} needs a horizon: give --steps or --horizon"):
            config.resolve(dqn | more)
        assert config.resolve(dqn | more | {"horizon": 1e4})[0].algorithm["horizon"] == 1e4
    for more in ({"epsilon_schedule": "constant"}, {"noisy": True}, {"noisy": True, "prioritised": True, "priority_beta": 1.0}):
        assert config.resolve(dqn | more)[0].algorithm["horizon"] == math.inf
    recorded = write(dumps_toml(config.plan_to_dict(config.resolve({**linear, "steps": 5000})[0])))
    assert config.resolve({"steps": 8000}, recorded)[0].algorithm["horizon"] == 8000.0


@pytest.mark.parametrize(
    ("num_envs", "lane_envs", "parts", "ways"),
    [(8, 0, 48, [24]), (4, 0, 48, [3, 6]), (2, 0, 48, [3]), (9, 3, 32, [6, 12]), (32, 0, 48, [24, 48]), (1, 0, 7, [7])],
)
def test_minibatches_must_divide_and_the_ways_out_work(num_envs, lane_envs, parts, ways):
    flags = {**OFF, "num_steps": 16, "num_minibatches": parts, "lane_envs": lane_envs}
    with pytest.raises(ConfigError) as refused:
        config.resolve({**flags, "num_envs": num_envs})
    offered = [int(text.split()[0]) for text in str(refused.value).split("--num-envs ")[1:]]
    assert set(ways) <= set(offered) and all(n != num_envs for n in offered)
    for way in offered:
        config.resolve({**flags, "num_envs": way})


def test_run_record_round_trip(write):
    flags = {
        "env": "cartpole",
        "seed": 2**63,
        "target_return": 1e9,
        "hidden": (8,),
        "checkpoint_every": 5000,
        "max_grad_norm": math.inf,
        "env_options": {"gravity": 1e-5},
    }
    plan, _ = config.resolve(flags)
    assert plan.checkpoint_every == "5000"
    text = dumps_toml(config.plan_to_dict(plan))
    assert config.plan_from_dict(tomllib.loads(text)) == plan
    assert config.resolve({}, write(text))[0] == plan
    gym, _ = config.resolve(
        {"env": "CartPole-v1", "env_options": {"odd key": ['a"\\\n\x7f\u20ac', True, {"b": [1.5, -math.inf]}]}}
    )
    assert config.plan_from_dict(tomllib.loads(dumps_toml(config.plan_to_dict(gym)))) == gym


def test_record_without_newer_fields_is_filled_in():
    data = config.plan_to_dict(config.resolve({**OFF, "discount": 0.5})[0])
    del data["algorithm"]["gae_lambda"], data["keep"]
    plan = config.plan_from_dict(data)
    assert (plan.algorithm["gae_lambda"], plan.algorithm["discount"], plan.keep) == (0.95, 0.5, 3)
    with pytest.raises(ConfigError, match=r"config.toml.*did you mean 'discount'"):
        config.plan_from_dict({**data, "algorithm": {"discoun": 0.5}})


def test_a_record_is_taken_as_it_is():
    data = config.plan_to_dict(config.resolve({**OFF, "steps": 5000})[0])
    data["algorithm"] |= {"horizon": math.inf, "learning_rate_schedule": "linear"}
    plan = config.plan_from_dict({"shoal_version": "0.1", **data})
    assert plan.algorithm["horizon"] == math.inf and config.plan_to_dict(plan) == data


def test_a_run_of_an_object_without_a_name():
    data = config.plan_to_dict(config.resolve(OFF)[0])
    with pytest.raises(ConfigError, match="MyWorld was given as an object"):
        config.plan_from_dict({**data, "env": "object:MyWorld"})


def test_a_file_cannot_import(write, tmp_path, monkeypatch):
    (tmp_path / "my_plugin_for_config.py").write_text(
        "import shoal.registry\ndef world(size: int = 2): ...\nshoal.registry.register(env={'my_world_for_config': world})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_added", {kind: {} for kind in registry.BUILTIN})
    file = write('plugins = ["my_plugin_for_config"]\nenv = "my_world_for_config"\n')
    with pytest.raises(MissingError, match="add --plugin my_plugin_for_config"):
        config.resolve({}, file)
    assert registry._added["env"] == {}
    plan, _ = config.resolve({"plugins": ("my_plugin_for_config",)}, file)
    assert plan.env == "my_world_for_config" and plan.plugins == ("my_plugin_for_config",)


def test_a_plugin_that_raises_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_broken_plugin.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="plugin my_broken_plugin failed: ZeroDivisionError"):
        config.resolve({"plugins": ("my_broken_plugin",)})


FILES = [
    ("steps = 'many'", "steps = 'many': expected a whole number"),
    ("steps = true", "steps = True"),
    ("steps = 1.5", "steps = 1.5"),
    ("step = 5", "'step' (FILE); did you mean 'steps'"),
    ("learning_rate = 1e-3", "put it under [algorithm]"),
    ("seed = -1", "seed = -1"),
    ("[algorithm]\nlearning_rat = 1.0", "'learning_rat' (FILE [algorithm]); did you mean 'learning_rate'"),
    ("num_envs = 0", "num_envs = 0"),
    ("[algorithm]\nlearning_rate = nan", "learning_rate = nan: expected a number"),
    ("algorithm = 5", "algorithm = 5: expected a table"),
    ("[algorithm]\nlearning_rate = '1'", "learning_rate = '1'"),
    ("[algorithm]\nhidden = 64", "hidden = 64: expected a list of int"),
    ("[algorithm]\nhidden = [64, true]", "hidden = True"),
    ("[algorithm]\nnormalise_obs = 1", "true or false"),
    ("env = 5", "env = 5"),
    ("[algorithm]\nnet = 'mpl'", "did you mean 'mlp'"),
    ("runtime = 'locl'", "did you mean 'local'"),
    ("team = 'together'", "independent"),
    ("[env_options]\ngravit = 1", "'gravit' (FILE [env_options]); did you mean 'gravity'"),
    ("num_envs = 12", "--num-envs 8 or --num-envs 16"),
    ("[env_options]\ngravity = 'strong'", "gravity = 'strong'"),
    ("minutes = inf", "minutes = inf"),
    ("minutes = nan", "minutes = nan"),
    ("checkpoint_every = 'often'", "checkpoint_every = 'often'"),
    ("seed = 99999999999999999999", "below 2**64"),
    ("steps = ", "not valid TOML"),
    ("a = 1979-05-27", "unknown key 'a'"),
    ("seed = 1979-05-27", "seed = datetime"),
    ("plugins = 'os'", "plugins = 'os': expected a list"),
    ("preset = 'cartpol'", "did you mean 'cartpole'"),
    ("algo = 'pppo'", "did you mean 'ppo'"),
    ("env = 'os:CartPole-v1'", "os:CartPole-v1"),
    ("a = " + "[" * 5000, "not valid TOML"),
    ("a = " + "9" * 5000, "TOML"),
    ("steps = 1\nsteps = 2", "not valid TOML"),
]


@pytest.mark.parametrize(("text", "expected"), FILES, ids=[text[:24] for text, _ in FILES])
def test_bad_files(write, text, expected):
    file = write(text)
    with pytest.raises(ConfigError) as refused:
        config.resolve({}, file)
    assert expected.replace("FILE", file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bytes_sizes_and_folders(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"env = '\xff'")
    (tmp_path / "large.toml").write_bytes(b"#" * (config.MAX_FILE_BYTES + 1))
    for name, expected in (
        ("latin.toml", "not valid TOML"),
        ("large.toml", "larger than"),
        ("larg.toml", "did you mean 'large.toml'"),
        (".", "no config file"),
        ("x" * 300, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=expected):
            config.read(tmp_path / name)


def test_mangled_records_are_refused_or_sound(write):
    """300 random edits of a good record: either a plan that passes its own check, or a ConfigError of one line."""
    good = dumps_toml(config.plan_to_dict(config.resolve({"env": "cartpole"})[0]))
    draw, pieces = (
        random.Random(0),
        ["=", "[", "]", '"', "nan", "-1", "true", "inf", "0", "\n", "'", "{", "9" * 30, "é", "1e9", "#", "[x]"],
    )
    refused = 0
    for _ in range(300):
        at = draw.randrange(len(good))
        text = good[:at] + draw.choice(pieces) + good[at + draw.choice((0, 1, 1, 4, 40)) :]
        try:
            plan, _ = config.resolve({}, write(text))
            plan_module.check(plan)
        except ConfigError as error:
            refused += 1
            assert str(error)
    assert 100 < refused < 300
