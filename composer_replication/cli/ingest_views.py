"""Terminal views of `ingest`: the summary of a run, an audit, traces turn by turn, errors and hints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_replication.hint_generator import OUTCOME_KINDS, is_students_mistake
from composer_replication.ingestion.audit import Audit
from composer_replication.ingestion.error_views import (
    FIGURES,
    SIDES,
    ErrorTable,
    ExplainedTrace,
    ExplainedTurn,
    HintList,
    Side,
)
from composer_replication.ingestion.pipeline import IngestReport

_ROLE_COLOURS = {"user": "cyan", "assistant": "green", "tool": "blue", "system": "magenta"}
_SHOWN_SKIPS = 12
_SHOWN_KINDS = 6
_INDENT = (0, 0, 0, 5)
_UNITS = ((3600, "h"), (60, "min"), (1, "s"))
_LEGEND = (
    "failed: the result is an error. outcomes: those of them that report on earlier work, such as a failing test; "
    "charged: the turn that wrote what fails is known. masked: failures that the command hid. "
    "hints: given for calls of the row."
)
_FILE_ROWS = (
    ("no_log", "files that are not logs"),
    ("failed", "files that failed"),
    ("unchanged", "files not read again"),
    ("gone", "files gone, their traces kept"),
    ("other_settings", "traces kept that were made with other options"),
)
# What a terminal obeys instead of showing it, and what turns the direction of writing.
_COMMANDS = dict.fromkeys([*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")


def _plain(text: str) -> str:
    """A text from a log as something that can only be read: no commands to the terminal, no markup."""
    return escape(text.translate(_COMMANDS))


def show_report(console: Console, report: IngestReport, output: Path) -> None:
    """The summary of a run."""
    figures, stats = report.as_dict(), report.stats
    files = figures["files"]
    rows = [("files that are logs", files["logs"])]
    rows += [(f"  {_plain(name)}", count) for name, count in sorted(figures["formats"].items())]
    rows += [(label, files[name]) for name, label in _FILE_ROWS if files[name]]
    rows += [("bytes", figures["bytes"]), ("records", stats.n_records_total), ("traces", figures["traces"])]
    rows += [("turns", stats.n_turns), ("  of the student (states)", stats.n_states_emitted)]
    rows += [("  copied from another file", report.copied_turns)] if report.copied_turns else []
    rows += [("tool calls", stats.n_tool_use_blocks), ("  without a result", stats.calls_without_result)]
    rows += [("tool results", stats.n_tool_results), ("  without a call", stats.results_without_call)]
    rows += [("tokens in", stats.input_tokens), ("  from the cache", stats.cached_tokens)]
    rows += [("tokens out", stats.output_tokens)]
    table = Table("", "count", title=f"Traces in {_plain(str(output))}", title_justify="left", show_header=False)
    table.columns[1].justify, table.columns[1].no_wrap = "right", True
    for label, count in rows:
        table.add_row(label, f"{count:,}")
    console.print(table)
    _show_errors(console, stats.errors)
    _show_counts(console, "Skipped", stats.skipped, _SHOWN_SKIPS)
    _show_counts(console, "Recovered from damaged lines", stats.recovered)
    _show_counts(console, "Redacted", stats.redactions)
    for warning in stats.version_warnings or []:
        console.print(f"[yellow]note:[/] {_plain(warning)}")
    show_failures(console, {entry.source: entry.reason or "" for entry in report.with_status("failed")})
    console.print(f"{report.seconds:.1f} s")


def show_failures(console: Console, failures: Mapping[str, str]) -> None:
    """Every file that could not be read, and why."""
    for source, reason in failures.items():
        console.print(f"[red]failed:[/] {_plain(source)}: {_plain(reason)}")


def _show_errors(console: Console, errors: Counter[str]) -> None:
    if not errors:
        return
    table = _count_table("tool errors", "count", "whose")
    for kind, count in errors.most_common():
        mistake = "student's" if is_students_mistake(kind) else "[dim]not the student's[/]"
        table.add_row(_plain(kind), f"{count:,}", "an outcome" if kind in OUTCOME_KINDS else mistake)
    console.print(table)


def _show_counts(console: Console, title: str, counts: Counter[str], most: int | None = None) -> None:
    shown = [(name, count) for name, count in counts.most_common() if count]
    if not shown:
        return
    table = _count_table(title, "count")
    for name, count in shown[:most]:
        table.add_row(_plain(name), f"{count:,}")
    if rest := shown[most:] if most else []:
        table.add_row(f"[dim]{len(rest)} more reasons (--json has them)[/]", f"{sum(count for _, count in rest):,}")
    console.print(table)


def _count_table(*columns: str) -> Table:
    table = Table(*columns)
    table.columns[0].overflow = "fold"
    table.columns[1].justify, table.columns[1].no_wrap = "right", True
    return table


def show_audits(console: Console, audits: list[Audit]) -> None:
    """Both counts of every file, and every difference."""
    table = Table("file", "states", "results", "", caption="in the lines / as read", caption_justify="left")
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for audit in audits:
        table.add_row(
            _plain(audit.path.name),
            f"{audit.raw_states:,}/{audit.read_states:,}",
            f"{audit.raw_results:,}/{audit.read_results:,}",
            "[green]equal[/]" if audit.holds else "[red]differs[/]",
        )
    console.print(table)
    for audit in audits:
        for difference in audit.differences:
            console.print(f"[red]{_plain(str(audit.path))}:[/] {_plain(difference)}")
    states = sum(audit.raw_states for audit in audits)
    results = sum(audit.raw_results for audit in audits)
    verdict = "nothing lost" if all(audit.holds for audit in audits) else "see the differences above"
    copies = sum(audit.duplicate_results for audit in audits)
    unpaired = sum(audit.unpaired_results for audit in audits)
    counted = f"{copies:,} of them copies, {unpaired:,} without a call"
    console.print(f"{len(audits)} files, {states:,} states, {results:,} results ({counted}): {verdict}")


def show_traces(console: Console, explained: list[tuple[ExplainedTrace, list[int]]]) -> None:
    """Traces turn by turn; of each only those turns whose indices are given with it."""
    for trace, shown in explained:
        if shown:
            _show_trace(console, trace, shown)
    if without := sum(not shown for _, shown in explained):
        console.print(f"{_count(without, 'trace')} without such a turn")


def _show_trace(console: Console, trace: ExplainedTrace, shown: list[int]) -> None:
    """Error sites and their hints stand out."""
    console.rule(_plain(f"{trace['trace_id']} · {trace['format']} {trace['version'] or ''}".rstrip()))
    turns, model, following = trace["turns"], None, 0
    for index in shown:
        _show_gap(console, index - following)
        following = index + 1
        _show_turn(console, turns[index], model)
        model = turns[index].get("model", model)
    _show_gap(console, len(turns) - following)
    sites = [turn for turn in turns if "tool_error" in turn]
    figures = [_count(len(turns), "turn"), _count(len(sites), "error site")]
    figures.append(f"{sum('hint' in turn for turn in sites)} with a hint")
    if outcomes := [turn for turn in turns if "outcome" in turn]:
        charged = sum(bool(turn["charged_to"]) for turn in outcomes)
        figures += [_count(len(outcomes), "outcome"), f"{charged} charged"]
    if masked := sum("masked" in turn for turn in turns):
        figures.append(f"{masked} masked")
    console.print(", ".join(figures))


def _show_gap(console: Console, turns: int) -> None:
    if turns:
        console.print(f"     [dim]… {_count(turns, 'turn')} …[/]")


def _show_turn(console: Console, turn: ExplainedTurn, model_before: str | None) -> None:
    colour = _ROLE_COLOURS.get(turn["role"], "white")
    origin = f" ({turn['origin']})" if turn.get("origin") not in (None, "prompt") else ""
    if turn.get("context_begins"):
        console.print("[yellow]── the context begins anew here ──[/]")
    name = f"{turn['role']} {turn.get('tool', '')}".rstrip()
    facts = "".join(f" · {fact}" for fact in _facts(turn, model_before)).removeprefix(" ·")
    console.print(f"[bold {colour}]{turn['index']:>4} {_plain(name + origin)}[/][dim]{_plain(facts)}[/]")
    _show_details(console, _details(turn))


def _facts(turn: ExplainedTurn, model_before: str | None) -> Iterator[str]:
    if "line" in turn:
        yield f"line {turn['line']}"
    if "model" in turn and turn["model"] != model_before:
        yield turn["model"]
    if (tokens := turn.get("tokens")) is not None:
        cached = f" ({tokens['cached']:,} cached)" if tokens["cached"] else ""
        yield f"{tokens['input']:,} tokens in{cached}, {tokens['output']:,} out"
    if (seconds := turn.get("seconds", 0)) > 0:
        size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size or size == 1)
        yield f"{seconds / size:.1f} {unit}"


def _details(turn: ExplainedTurn) -> Iterator[str]:
    text, thinking = turn["text"], turn.get("thinking")
    if text or turn["role"] == "tool":
        yield f"{_plain(text) or '[dim](nothing)[/]'}{_size(turn)}"
    elif thinking:
        yield f"[italic dim]thinking: {_plain(thinking)}[/]"
    for call in turn.get("calls", ()):
        yield _plain(call)
    if "error_kind" in turn:
        kind, masked = _plain(turn["error_kind"]), ", masked by its command" if "masked" in turn else ""
        if "outcome" in turn:
            charged = ", ".join(map(str, turn["charged_to"]))
            whose = f"charged to turn {charged}" if charged else "no turn is charged"
            yield f"[magenta]outcome: {kind}{masked}, {whose}[/]"
        else:
            yield f"[red]✗ {kind}{masked}[/]"
    if "tool_error" in turn:
        whose = "" if turn.get("students_mistake", True) else " (not the student's mistake)"
        yield f"[bold red]error site: {_plain(turn['tool_error'])}[/]{_reporter(turn.get('reported_by'))}{whose}"
    if "hint" in turn:
        yield _hint(turn["hint"])


def _size(turn: ExplainedTurn) -> str:
    """The size of a result of which only a line, or a part of one, is shown."""
    if turn.get("lines", 0) > 1:
        return f" [dim]({turn['lines']:,} lines)[/]"
    return (
        f" [dim]({turn['characters']:,} characters)[/]" if turn["text"].endswith("…") and "characters" in turn else ""
    )


def _reporter(index: int | None) -> str:
    return "" if index is None else f", reported by the result at turn {index}"


def _hint(hint: str) -> str:
    return f"[yellow]hint: {_plain(' '.join(hint.split()))}[/]"


def _show_details(console: Console, details: Iterable[str]) -> None:
    for detail in details:
        console.print(Padding(Text.from_markup(detail, emoji=False), _INDENT, expand=False))


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_hints(console: Console, listed: HintList) -> None:
    """Every hint under its kind, the most frequent first, and the number of errors without one."""
    for kind, count in Counter(hint["kind"] for hint in listed.hints).most_common():
        console.print(f"[bold]{_plain(kind)}: {_count(count, 'hint')}[/]")
        for hint in listed.hints:
            if hint["kind"] == kind:
                line = f" line {hint['line']}" if hint["line"] is not None else ""
                where = f"{hint['trace']} turn {hint['turn']}{line}{_reporter(hint['reported_by'])}"
                console.print(f"  [dim]{_plain(where)}[/]")
                told = [f"{name}: {_plain(text)}" for name in ("call", "error") if (text := hint[name])]
                _show_details(console, [*told, _hint(hint["hint"])])
        console.print()
    without = f"{_count(listed.without_hint, 'error site')} without a hint"
    outcomes = f"{_count(listed.outcomes_not_charged, 'outcome')} not charged"
    console.print(f"{_count(len(listed.hints), 'hint')}, {without}, {outcomes}")


def show_error_table(console: Console, table: ErrorTable) -> None:
    """A table each for projects, tools and models: how many of their calls failed, and as what."""
    for side in SIDES:
        rows = table.by(side)
        failing = [row for row in rows if row["failed"] or row["hints"]]
        _show_rows(console, side, failing)
        if without := len(rows) - len(failing):
            calls = sum(row["calls"] for row in rows) - sum(row["calls"] for row in failing)
            console.print(f"[dim]{_count(without, side)} without a failure: {_count(calls, 'call')}[/]")
        console.print()
    console.print(f"[dim]{_LEGEND}[/]")


def _show_rows(console: Console, side: Side, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    cells = [["calls", "failed", "share", "outcomes", "charged", "masked", "hints"]]
    for row in rows:
        figures = [f"{row[name]:,}" for name in FIGURES]
        figures.insert(2, f"{row['failed'] / row['calls']:.1%}" if row["calls"] else "")
        cells.append(figures)
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    lines = ["".join(map(str.rjust, figures, widths)) for figures in cells]
    names = [row[side] for row in rows]
    room = max(len(side), min(max(map(len, names)), console.width - sum(widths)))
    console.print(f"[bold]{side:<{room}}{lines[0]}[/]")
    for name, line, row in zip(names, lines[1:], rows, strict=True):
        if len(name) > room:
            console.print(_plain(name))
            name = ""
        console.print(_plain(f"{name:<{room}}{line}"))
        kinds = list(row["kinds"].items())
        shown = [f"{kind} {count:,}" for kind, count in kinds[:_SHOWN_KINDS]]
        if rest := kinds[_SHOWN_KINDS:]:
            shown.append(f"{_count(len(rest), 'more kind')} {sum(count for _, count in rest):,}")
        _show_details(console, [f"[dim]{_plain(', '.join(shown))}[/]"] if shown else [])
