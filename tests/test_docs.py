"""README and docs are true of the tree: commands and options, files, modules, names, settings, and which stage imports
which.

`python tests/test_docs.py` writes docs/settings.md anew.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from composer_replication.channels.fields import Settings, described
from composer_replication.channels.hint_distillation import HintDistillation, HintGate
from composer_replication.channels.policy import CrossEntropy, Grpo
from composer_replication.channels.preference import Preference
from composer_replication.channels.settings import Watch
from composer_replication.cli.app import app
from composer_replication.diloco.settings import DilocoSection
from composer_replication.run.loading import config_schema
from composer_replication.run.presets import PRESETS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "composer_replication"
PAGES = [ROOT / "README.md", *ROOT.glob("[CS]*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
ARCHITECTURE = TEXTS["docs/architecture.md"]
SETTINGS = ROOT / "docs" / "settings.md"
COMMAND = re.compile(r"composer-replication[ \t]+([a-z][a-z-]*)([^`#|\n]*)")
CODE = re.compile(r"`([^`\n]+)`")
every_page = pytest.mark.parametrize("page", TEXTS)


@every_page
def test_commands_and_options(page: str) -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for verb, rest in COMMAND.findall(TEXTS[page]):
        assert verb in verbs, verb
        command = verbs[verb]
        if hasattr(command, "commands"):  # a group, whose first word is the command
            command = command.commands[(rest.split() or ["none"])[0]]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
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
    for code in CODE.findall(TEXTS[page]):
        if re.fullmatch(r"[\w./]+\.py", code):  # from the root, or some way down the package
            assert (ROOT / code).exists() or list(PACKAGE.rglob(code)), code


@every_page
def test_modules_and_their_names(page: str) -> None:
    for dotted in (code for code in CODE.findall(TEXTS[page]) if re.fullmatch(r"[a-z_]+(\.\w+)+(\(\))?", code)):
        first, *names = dotted.removesuffix("()").removeprefix("composer_replication.").split(".")
        is_ours = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").is_file()
        if not is_ours or names[-1:] in (["py"], ["yaml"], ["json"]):
            continue
        found = importlib.import_module(f"composer_replication.{first}")
        for name in names:
            try:
                found = getattr(found, name)
            except AttributeError:
                found = importlib.import_module(f"{found.__name__}.{name}")


def test_the_tree_names_what_is_there() -> None:
    block = ARCHITECTURE.partition("## The tree")[2].split("```")[1]
    folders: list[str] = []
    named: set[Path] = set()
    for line in block.strip().splitlines():
        indent, names = re.match(r"( *)([^\s,]+(?:, [^\s,]+)*)", line).groups()  # type: ignore[union-attr]
        del folders[len(indent) // 2 :]
        paths = [Path(*folders, name) for name in names.split(", ")]
        for path in paths:
            assert (ROOT / path).is_dir() if names.endswith("/") else (ROOT / path).is_file(), line
        named.update(paths)
        folders += [names] if names.endswith("/") else []
    listed_in_part = {path.parent for path in named}
    for file in PACKAGE.rglob("*.py"):
        path = file.relative_to(ROOT)
        whole = any(folder in named and folder not in listed_in_part for folder in path.parents)
        assert path in named or whole or path.name == "__init__.py", f"docs/architecture.md does not name {path}"


def test_the_stops_name_what_is_there() -> None:
    stops = re.findall(r"(?m)^\| \d+ \| (.+) \| (.+) \|$", ARCHITECTURE)
    assert 10 <= len(stops) <= 15
    for where, what in stops:
        places = [PACKAGE / place for place in CODE.findall(where)]
        files = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])]
        words = set(re.findall(r"\w+", " ".join(file.read_text(encoding="utf-8") for file in files)))
        names = {name for code in CODE.findall(what) if "/" not in code for name in code.split(".")}
        assert names <= words, (where, names - words)


def test_stages_import_the_stages_before_them() -> None:
    order = CODE.findall(ARCHITECTURE.partition("never one that comes after:")[2].partition(".")[0])
    assert len(order) > 5
    for number, stage in enumerate(order):
        for file in (PACKAGE / stage).rglob("*.py"):
            imported = re.findall(r"(?m)^\s*from composer_replication\.(\w+)", file.read_text(encoding="utf-8"))
            later = {*imported} & {*order[number + 1 :]}
            assert not later or file.relative_to(PACKAGE).as_posix() == "hint_generator/judge.py", (file, later)


def settings_page() -> str:
    """The settings of the channels, from their fields, and the presets."""
    sections: dict[str, type[Settings]] = {
        "channels.lm": CrossEntropy,
        "channels.grpo": Grpo,
        "channels.sdpo": HintDistillation,
        "channels.sdpo.gate": HintGate,
        "channels.replay": Preference,
        "training": Watch,
        "diloco": DilocoSection,
    }
    lines = [
        "# Settings of the channels, and of DiLoCo",
        "",
        "Made by `python tests/test_docs.py` from the fields in `channels/` and `diloco/settings.py`, and at the end",
        "from the table in `run/presets.py`. `key` is for a configuration, `keyword` for the trainers and",
        "`ChannelSettings`.",
        "`composer-replication train --schema` has these and all other keys of a configuration, with their ranges.",
        "What to set, and why, is in [training.md](training.md) and [diloco.md](diloco.md).",
    ]
    for place, section in sections.items():
        lines += ["", f"## {place}", "", str(section.__doc__), ""]
        lines += ["| key | keyword | default | meaning |", "|---|---|---|---|", *_rows(section, "")]
    for name, values in PRESETS.items():
        lines += ["", f"## preset: {name}", "", "Fills in what a configuration does not say.", ""]
        lines += ["| setting | default | why |", "|---|---|---|"]
        for key, earned in values.items():
            place, _, setting = key.rpartition(".")
            (default,) = (one.default for one in described(sections[place]) if one.name == setting)
            lines.append(f"| `{key}: {json.dumps(earned.value)}` | `{json.dumps(default)}` | {earned.why} |")
    return "\n".join(lines) + "\n"


def _rows(section: type[Settings], before: str) -> Iterator[str]:
    known = config_schema()["$defs"]
    texts = known.get(section.__name__, known["TrainingSection"])["properties"]
    only = {None: "", "rollouts": " (`ComposerReplicationTrainer`)", "traces": " (`TraceTrainer`)"}
    for one in described(section):
        if one.section is not None and one.keyword is None:
            yield from _rows(one.section, f"{before}{one.name}.")
            continue
        keyword = "" if one.keyword is None else f"`{one.keyword.name}`{only[one.keyword.only]}"
        default = "see below" if isinstance(one.default, Settings) else f"`{json.dumps(one.default)}`".replace('"', "")
        text = " ".join(texts[one.name]["description"].split()).replace("|", "\\|")
        choices = f" One of {', '.join(one.choices)}." if one.choices else ""
        yield f"| `{before}{one.name}` | {keyword} | {default} | {text}{choices} |"


def test_the_page_of_settings_is_in_step() -> None:
    assert SETTINGS.read_text(encoding="utf-8") == settings_page(), "run `python tests/test_docs.py`"


if __name__ == "__main__":
    SETTINGS.write_text(settings_page(), encoding="utf-8")
