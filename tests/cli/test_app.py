"""The command line as a user meets it: real processes, exit codes, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert cli.run(["quickstart"]) == 1
    assert capsys.readouterr().err == "error: the disk is full: free some [space]\n"
    for arguments in (["--debug", "quickstart"], ["quickstart", "--debug"]):
        assert cli.run(arguments) == 1
        assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("composer_replication._tiny.run_loss_demo", interrupt)
    assert cli.run(["quickstart"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_no_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    captured = capsys.readouterr()
    assert "quickstart" in captured.out
    assert captured.err == ""


def test_quickstart_shows_every_channel() -> None:
    table = run("quickstart", "--steps", "4")
    assert table.returncode == 0
    assert "factorial: probability of the right call without the hint" in table.stdout
    steps = json.loads(run("quickstart", "--steps", "2", "--json").stdout)["steps"]
    assert [step["trace"] for step in steps] == ["factorial", "binary_search"]
    assert set(steps[0]["active_tokens"]) == {"lm_ce", "sdpo_jsd", "trace_replay_dpo"}
