"""Errors and hints on labelled cases, and on logs of your own: is a failure found, who is charged, what is the hint?

`commands` are calls of a shell with their results, labelled "failed" or not, whether or not the log flags them;
`sessions` are labelled with the turns that wrote what a check fails on. All were made and labelled without sight of the
rules. The rules were then improved on `commands_dev` and `sessions`; `commands_test` came last, and only its totals
were looked at. Every hint is printed once.

    python benchmarks/hints.py --logs ~/.claude/projects
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reporting import judged, machine, main, targets_table
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from composer_replication.hint_generator import LayeredHints, as_collator_hint, is_students_mistake, mark_errors
from composer_replication.hint_generator.layers import is_vague
from composer_replication.ingestion import read_traces
from composer_replication.ingestion.formats import ReadOptions
from composer_replication.ingestion.log_file import find_files
from composer_replication.ingestion.pipeline import UnknownFormatError
from composer_replication.ingestion.redaction import redact_trace
from composer_replication.traces import Source, ToolCall, Trace, Turn, dump_json

FIXTURES = Path(__file__).parent.parent / "tests" / "hint_generator" / "fixtures"
COMMANDS = ("commands_dev", "commands_test")
HINT = as_collator_hint(LayeredHints())


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a labelled set."""
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def trace_of(turns: Iterable[Iterable[dict[str, Any]]]) -> Trace:
    """A marked trace of these calls: a list of calls for each turn, as the sets have them."""
    trace = Trace("case", [], Source("case", "claude_code"))
    for number, calls in enumerate(turns):
        made = [(ToolCall(f"{number}:{place}", one["name"], one["arguments"]), one) for place, one in enumerate(calls)]
        trace.turns.append(Turn("assistant", tool_calls=[call for call, _ in made]))
        trace.turns += [
            Turn("tool", one["result"], tool_call_id=call.id, is_error=bool(one["is_error"])) for call, one in made
        ]
    mark_errors(trace)
    return trace


def command_figures(cases: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Trace]]:
    """Measure how well failures of commands are found and classified, and whether their own line is quoted."""
    traces = []
    found, masked, whose, quoted = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for case in cases:
        call = {**case, "name": "Bash", "arguments": {"command": case["command"]}}
        trace = trace_of([[call]])
        traces.append(trace)
        result = trace.turns[1]
        says_failed = result.error_kind not in (None, "no_match")
        _add(found, case["failed"], says_failed)
        if not case["is_error"]:
            _add(masked, case["failed"], says_failed)
        if case["failed"] and says_failed and case["own_mistake"] is not None:
            whose["right" if result.outcome != case["own_mistake"] else "wrong"] += 1
        meta = trace.turns[0].error_meta
        if meta is not None and case["telling"]:
            line = str(meta["error_message"]).partition("\n")[0]
            quoted["right" if _same_line(line, case["telling"]) else "other"] += 1
    return {
        "cases": len(cases),
        "failures": _rates(found),
        "masked": _rates(masked),
        "whose": dict(whose),
        "line_quoted": dict(quoted),
    }, traces


def session_figures(sessions: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Trace]]:
    """Measure how well the turns that wrote what fails are found."""
    traces = []
    outcomes, charged = Counter[str](), Counter[str]()
    for session in sessions:
        trace = trace_of(turn["calls"] for turn in session["turns"])
        traces.append(trace)
        spoken = [index for index, turn in enumerate(trace.turns) if turn.role == "assistant"]
        for label in session["labels"]:
            result = trace.turns[spoken[label["turn"]] + 1 + label["call"]]
            _add(outcomes, label["outcome"], result.outcome)
            said = {spoken.index(index) for index in result.charged_to}
            if not label["outcome"]:
                said.discard(label["turn"])  # it ran what it had just written
            right = set(label["charged"])
            charged["right"] += len(said & right)
            charged["said"] += len(said)
            charged["labelled"] += len(right)
    return {"sessions": len(sessions), "outcomes": _rates(outcomes), "charged": _rates(charged)}, traces


def log_traces(paths: list[str]) -> Iterator[Trace]:
    """The redacted traces of logs."""
    for file in find_files(paths):
        try:
            for trace in read_traces(file, ReadOptions(subagents=True)):
                redact_trace(trace)
                yield trace
        except UnknownFormatError:
            continue


def trace_figures(traces: Iterable[Trace]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Count errors and hints over any traces; return every hint once."""
    kinds, counts = Counter[str](), Counter[str]()
    hints: dict[str, dict[str, str]] = {}
    for trace in traces:
        counts["traces"] += 1
        for turn in trace.turns:
            if turn.role == "tool":
                counts["results"] += 1
                if turn.error_kind is not None:
                    kinds[turn.error_kind] += 1
                counts["masked"] += turn.masked
                counts["outcomes"] += turn.outcome
                counts["outcomes_charged"] += bool(turn.charged_to)
            if turn.tool_error is None or turn.repeats:
                continue
            meta = turn.error_meta or {}
            if not is_students_mistake(turn.tool_error, meta):
                continue
            counts["mistakes"] += 1
            counts["vague"] += is_vague(meta.get("original_kind", turn.tool_error))
            hint = HINT(turn.tool_error, meta)
            if hint is not None:
                counts["with_hint"] += 1
                call = next((one for one in turn.tool_calls if one.id == meta.get("tool_call_id")), turn.tool_call)
                asked = f"{call.name} {dump_json(call.arguments)}" if call is not None else ""
                said = str(meta.get("error_message", ""))
                hints.setdefault(hint, {"kind": turn.tool_error, "call": asked, "error": said, "hint": hint})
    mistakes = max(counts["mistakes"], 1)
    figures = {
        **counts,
        "share_vague": counts["vague"] / mistakes,
        "share_with_hint": counts["with_hint"] / mistakes,
        "kinds": dict(kinds.most_common()),
    }
    return figures, sorted(hints.values(), key=lambda one: (one["kind"], one["hint"]))


def report(logs: list[str]) -> dict[str, Any]:
    """The labelled sets, the logs, and the targets."""
    results: dict[str, Any] = {}
    results["sessions"], traces = session_figures(rows("sessions"))
    for name in COMMANDS:
        results[name], commanded = command_figures(rows(name))
        traces += commanded
    results["constructed"], hints = trace_figures(traces)
    if logs:
        results["logs"], of_logs = trace_figures(log_traces(logs))
        hints = of_logs + hints
    test, sessions = results["commands_test"], results["sessions"]
    return {
        "benchmark": "hints",
        "machine": machine(),
        "shape": {name: len(rows(name)) for name in (*COMMANDS, "sessions")},
        "results": results,
        "hints": hints,
        "targets": [
            judged("failure_recall", test["failures"]["recall"], ">=0.95"),
            judged("failure_precision", test["failures"]["precision"], ">=0.97"),
            judged("charged_precision", sessions["charged"]["precision"], ">=0.97"),
        ],
    }


def show(found: dict[str, Any]) -> None:
    """Every hint, then the figures."""
    console = Console(highlight=False, emoji=False)
    for hint in found["hints"]:
        console.print(f"[bold]{hint['kind']}[/]  [dim]{escape(' '.join(hint['call'].split())[:160])}[/]")
        console.print(f"    {escape(' '.join(hint['error'].split())[:200])}")
        console.print(f"  → {escape(hint['hint'])}\n")
    results = found["results"]
    labelled = Table("labelled", "set", "rows", "said", "rightly", "precision", "recall", title="hints")
    for name in COMMANDS:
        _add_row(labelled, "failures of commands", name, results[name]["failures"])
        _add_row(labelled, "  not flagged by the log", name, results[name]["masked"])
    for name in ("outcomes", "charged"):
        _add_row(labelled, name, "sessions", results["sessions"][name])
    places = [name for name in ("constructed", "logs") if name in results]
    counted = Table("", *places)
    names = (
        "traces",
        "results",
        "mistakes",
        "share_with_hint",
        "share_vague",
        "masked",
        "outcomes",
        "outcomes_charged",
    )
    for name in names:
        values = [results[place].get(name, 0) for place in places]
        counted.add_row(name, *(f"{value:.3f}" if isinstance(value, float) else f"{value:,}" for value in values))
    kinds = Table("kind", *places)
    for kind in sorted({kind for place in places for kind in results[place]["kinds"]}):
        kinds.add_row(kind, *(str(results[place]["kinds"].get(kind, 0)) for place in places))
    console.print(labelled, counted, kinds, targets_table(found), sep="\n")


def _add_row(table: Table, name: str, of: str, rates: dict[str, Any]) -> None:
    counts = [str(rates[key]) for key in ("labelled", "said", "right")]
    table.add_row(name, of, *counts, f"{rates['precision']:.3f}", f"{rates['recall']:.3f}")


def _add(counts: Counter[str], label: bool, said: bool) -> None:
    counts["right"] += label and said
    counts["said"] += said
    counts["labelled"] += label


def _rates(counts: Counter[str]) -> dict[str, Any]:
    # Nothing said is nothing wrong.
    return {
        "labelled": counts["labelled"],
        "said": counts["said"],
        "right": counts["right"],
        "precision": counts["right"] / counts["said"] if counts["said"] else 1.0,
        "recall": counts["right"] / counts["labelled"] if counts["labelled"] else 1.0,
    }


def _same_line(one: str, other: str) -> bool:
    first, second = (" ".join(line.split()).strip(" .:") for line in (one, other))
    return bool(first) and (first in second or second in first)


if __name__ == "__main__":
    logs = {"nargs": "+", "default": [], "metavar": "PATH", "help": "agent logs to count and show hints of"}
    main(lambda arguments: report(arguments.logs), show=show, options={"--logs": logs})
