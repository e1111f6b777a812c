"""The command line as a user meets it: real processes, exit codes, one-line errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.main import get_command

from composer_replication.cli import app as cli

COMMAND = Path(sys.executable).parent / "composer-replication"


def run(*arguments: str, command: Path = COMMAND) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(command), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["composer-replication", "crf"])
def test_both_names_answer(name: str) -> None:
    result = run("--version", command=COMMAND.with_name(name))
    assert (result.returncode, result.stdout) == (0, "0.1.0\n")


@pytest.mark.parametrize("verb", [[], ["doctor"], ["quickstart"]])
def test_help_has_an_example_for_every_verb(verb: list[str]) -> None:
    result = run(*verb, "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout
    if verb:
        assert f"Example: composer-replication {verb[0]}" in result.stdout


def test_no_help_is_lost_as_markup() -> None:
    verbs: Any = get_command(cli.app)
    texts = [option.help or "" for verb in verbs.commands.values() for option in verb.params]
    assert any("one per core" in text for text in texts)
    assert [text for text in texts if Text.from_markup(text).plain != text] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["quikstart"], 2, "error: No such command 'quikstart'. Did you mean 'quickstart'?"),
        (["quickstart", "--stepz", "3"], 2, "No such option"),
        (["quickstart", "--steps", "many"], 2, "Invalid value for '--steps'"),
        (["quickstart", "--steps", "1"], 2, "Invalid value for '--steps'"),
        (["quickstart", "--alpha-sdpo", "inf"], 2, "Invalid value for '--alpha-sdpo'"),
        (["quickstart", "--seed", "9" * 30], 2, "Invalid value for '--seed'"),
        (["quickstart", "--template", "gpt5"], 2, "'gpt5' is not one of 'qwen2_5', 'llama3_1'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_a_failure_is_one_line_and_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("the disk is full:\nfree some [space]")

    monkeypatch.setattr("composer_replication._tiny.run_loss_demo", fail)
    verb = ["quickstart", "--beta-replay", "0"]  # without teachers, which others look at
    assert cli.run(verb) == 1
    assert capsys.readouterr().err == "error: the disk is full: free some [space]\n"
    for arguments in (["--debug", *verb], [*verb, "--debug"]):
        assert cli.run(arguments) == 1
        assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("composer_replication._tiny.run_loss_demo", interrupt)
    assert cli.run(["quickstart", "--beta-replay", "0"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_no_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    captured = capsys.readouterr()
    assert "quickstart" in captured.out
    assert captured.err == ""


def test_quickstart_asks_its_teachers_and_shows_every_channel() -> None:
    table = run("quickstart", "--steps", "4")
    assert (table.returncode, table.stderr) == (0, "")
    assert re.match(
        r"3 local teachers at http://127\.0\.0\.1:\d+/v1: 2 states, 6 calls, \$0\.0000; "
        r"2 pairs by meaning, 0 by text; 2 kept by the recipe default\n",
        table.stdout,
    )
    assert "factorial: probability of the right call without the hint" in table.stdout
    figures = json.loads(run("quickstart", "--steps", "2", "--json").stdout)
    steps, replay = figures["steps"], figures["replay"]
    assert [step["trace"] for step in steps] == ["factorial", "binary_search"]
    assert set(steps[0]["active_tokens"]) == {"lm_ce", "sdpo_jsd", "trace_replay_dpo"}
    assert [replay[name] for name in ("states", "calls", "cost_usd", "pairs_by_meaning", "pairs_by_text")] == [
        2,
        6,
        0.0,
        2,
        0,
    ]
    assert [(pair["trace"], pair["teachers"]) for pair in replay["pairs"]] == [
        ("factorial", ["careful", "thorough"]),
        ("binary_search", ["careful", "thorough"]),
    ]


def test_quickstart_without_pairs_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr("composer_replication.teacher_replay.serving.http_server.LocalTeachers.__enter__", fail)
    assert cli.run(["quickstart", "--steps", "2", "--beta-replay", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay"] is None
    assert cli.run(["quickstart", "--steps", "2", "--json"]) == 1
    assert capsys.readouterr().err == "error: a server was started\n"
