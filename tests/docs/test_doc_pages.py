"""What the pages say is so: tables match the code, flags and links exist."""

from __future__ import annotations

import re

import doc_pages
import pytest

from shoal import flags, registry

TEXTS = {page.name: page.read_text(encoding="utf-8") for page in doc_pages.PAGES}
GENERATED = {"scores.md", "speed.md"}  # written by make verify and make bench
KNOWN_FLAGS = {"--help", "--version"}.union(
    *(parser.flags() for parser in (flags.train_parser(registry.names("algo")), flags.resume_parser(), flags.eval_parser(),
                                    flags.list_parser(), flags.check_env_parser(), flags.doctor_parser())))


def _by_name(page):
    return page.name


def test_the_pages_with_snippets_are_those_we_think():
    known = {"getting-started", "run-folder", "environments", "algorithms", "determinism", "own-environment", "own-network",
             "own-algorithm", "check-env", "teams", "callbacks", "design", "replay", "processes"}
    assert {page.stem for page in doc_pages.runnable()} >= {"README", *known}


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=_by_name)
def test_snippets_are_in_languages_that_are_run_or_shown(page):
    for snippet in doc_pages.snippets(page):
        assert snippet.language in ("python", "bash", "toml", "text"), f"{page.name}:{snippet.line}"
        assert snippet.language != "toml" or snippet.file, f"{page.name}:{snippet.line}: give it a file name, to be checked"
    assert TEXTS[page.name].count("\n```") == 2 * len(doc_pages.snippets(page)), "a fence that was not understood"


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=_by_name)
def test_tables_of_fields_are_those_of_the_code(page):
    assert doc_pages.with_tables(TEXTS[page.name]) == TEXTS[page.name], "run: python tests/docs/doc_pages.py"


def test_the_table_of_an_algorithm_names_every_field_with_its_default():
    table = doc_pages.field_table("ppo")
    assert "| `learning_rate` | float | `0.00025` |" in table and "| `hidden` | tuple | `[64, 64]` |" in table
    assert table in TEXTS["algorithms.md"]


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=_by_name)
def test_every_flag_exists(page):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", TEXTS[page.name]))
    code = "".join(snippet.code for snippet in doc_pages.snippets(page) if snippet.file and snippet.language == "python")
    own = set(map(flags.flag_of, re.findall(r"^    (\w+): \w+ = ", code, re.MULTILINE)))  # of the algorithm that the page writes
    assert named <= KNOWN_FLAGS | own, named - KNOWN_FLAGS - own


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=_by_name)
def test_every_relative_link_resolves(page):
    prose = re.sub(r"^```.*?^```$", "", TEXTS[page.name], flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        there = page.parent / target if target else page
        if there.name in GENERATED and not there.exists():
            continue
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}#{anchor}"


def test_what_is_registered_is_named_and_nothing_else_is_claimed():
    rows = dict(re.findall(r"^\| (algorithms|environments|networks|where it runs) \| (.*) \|$", TEXTS["README.md"], re.MULTILINE))
    assert set(re.findall(r"`([a-z_]+)`", rows["environments"])) == set(registry.BUILTIN["env"])
    assert set(re.findall(r"`([a-z_]+)`", rows["where it runs"])) == set(registry.BUILTIN["runtime"])
    assert set(re.findall(r"`([a-z_]+)`", rows["networks"])) == set(registry.BUILTIN["net"])
    assert re.findall(r"`([a-z0-9_]+)`", rows["algorithms"]) == list(registry.BUILTIN["algo"])
    listed = re.findall(r"^\| `([a-z_]+)` \|", TEXTS["environments.md"], re.MULTILINE)
    assert listed == list(registry.BUILTIN["env"])


def test_the_first_screen_of_the_readme_has_what_it_is_two_commands_and_the_picture():
    first = TEXTS["README.md"].splitlines()[:14]
    assert any(line.startswith("make train") for line in first) and any(line.startswith("make test") for line in first)
    assert any("docs/learning_curve.svg" in line for line in first)
    assert len(TEXTS["README.md"].splitlines()) <= 130
