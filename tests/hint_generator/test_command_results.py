"""What is said of failed commands: the right line, the right name, advice that fits."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from command_results import Case, cases

from composer_replication.hint_generator import OUTCOME_KINDS, HintContext, classify, dispatch

CASES = cases()


def said(case: Case) -> tuple[str, str]:
    """The kind of a result, and the hint that its turn gets; of an outcome the line that is quoted."""
    text = f"Exit code {case.exit_code}\n{case.output}"
    kind, details = classify(text, tool_name="Bash", arguments={"command": case.command})
    line = str(details.pop("error_line", ""))
    if kind in OUTCOME_KINDS:
        return kind, line
    return kind, str(dispatch(kind, cast(HintContext, {**details, "error_message": line})))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.command[:40]}")
def test_what_is_said(case: Case) -> None:
    assert said(case) == (case.kind, case.said)


def test_all_results_are_read() -> None:
    folder = Path(__file__).parent / "results"
    assert len(CASES) == sum(path.read_text().count("#### ") for path in folder.glob("*.txt")) > 100


def test_colours_are_not_read() -> None:
    coloured = "\x1b[96msrc/a.ts\x1b[0m:\x1b[93m3\x1b[0m:5 - \x1b[91merror\x1b[0m\x1b[90m TS2304: \x1b[0mNo 'x'."
    kind, details = classify(f"Exit code 2\n{coloured}", tool_name="Bash", arguments={"command": "npx tsc --pretty"})
    assert (kind, details["error_line"]) == ("type_or_lint_error", "src/a.ts:3:5 - error TS2304: No 'x'.")
