"""What README and docs name exists: commands and their options, files, modules and their names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import typer

from composer_replication.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *ROOT.glob("[CS]*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
COMMAND = re.compile(r"composer-replication[ \t]+([a-z][a-z-]*)([^`#|\n]*)")
CODE = re.compile(r"`([^`\n]+)`")
every_page = pytest.mark.parametrize("page", TEXTS)


@every_page
def test_commands_and_options(page: str) -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for verb, rest in COMMAND.findall(TEXTS[page]):
        assert verb in verbs, verb
        known = {option for parameter in verbs[verb].params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {*re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)} - {"--help"} <= known, (verb, rest)


@every_page
def test_options_that_stand_alone(page: str) -> None:
    known = (ROOT / "tests" / "surface.txt").read_text() + "--help --debug --json --no-deps"
    codes = " ".join(code for code in CODE.findall(TEXTS[page]) if not code.startswith("python "))
    assert [option for option in re.findall(r"(?<!\S)(--[a-z][a-z-]+)", codes) if option not in known] == []


@every_page
def test_links_and_paths(page: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", TEXTS[page]):
        assert (ROOT / page).parent.joinpath(link).exists(), link
    for path in re.findall(r"\b((?:benchmarks|composer_replication|docs|examples|tests)/[\w./-]*\w)", TEXTS[page]):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"(?m)^\s+((?:[\w/]+\.py(?:, )?)+)", TEXTS[page]):  # the tree of README
        for file in name.split(", "):
            assert list(ROOT.rglob(f"*/{file}")) if "/" in file else [*ROOT.rglob(file)], file


@every_page
def test_modules_and_their_names(page: str) -> None:
    for dotted in (code for code in CODE.findall(TEXTS[page]) if re.fullmatch(r"[a-z_]+(\.\w+)+(\(\))?", code)):
        first, *names = dotted.removesuffix("()").removeprefix("composer_replication.").split(".")
        if not list((ROOT / "composer_replication").glob(f"{first}*")) or names[-1] in ("py", "yaml", "json"):
            continue
        found = importlib.import_module(f"composer_replication.{first}")
        for name in names:
            try:
                found = getattr(found, name)
            except AttributeError:
                found = importlib.import_module(f"{found.__name__}.{name}")
