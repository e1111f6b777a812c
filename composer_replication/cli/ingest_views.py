"""What `ingest` shows on a terminal: the summary of a run, an audit, and one trace turn by turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from composer_replication.hint_generator.kinds import is_students_mistake
from composer_replication.ingestion.audit import Audit
from composer_replication.ingestion.explanation import ExplainedTurn, explain_trace
from composer_replication.ingestion.pipeline import IngestReport
from composer_replication.traces import Trace

_ROLE_COLOURS = {"user": "cyan", "assistant": "green", "tool": "blue", "system": "magenta"}
_SHOWN_SKIPS = 12
_INDENT = (0, 0, 0, 5)
_FILE_ROWS = (
    ("no_log", "files that are none"),
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
    table = Table("", "count", title=f"Traces in {_plain(str(output))}", title_justify="left", show_header=False)
    table.columns[1].justify, table.columns[1].no_wrap = "right", True
    table.add_row("files that are logs", f"{files['logs']:,}")
    for name, count in sorted(figures["formats"].items()):
        table.add_row(f"  {_plain(name)}", f"{count:,}")
    for name, label in _FILE_ROWS:
        if files[name]:
            table.add_row(label, f"{files[name]:,}")
    table.add_row("bytes", f"{figures['bytes']:,}")
    table.add_row("records", f"{stats.n_records_total:,}")
    table.add_row("traces", f"{figures['traces']:,}")
    table.add_row("turns", f"{stats.n_turns:,}")
    table.add_row("  of the student (states)", f"{stats.n_states_emitted:,}")
    if report.copied_turns:
        table.add_row("  copied from another file", f"{report.copied_turns:,}")
    table.add_row("tool calls", f"{stats.n_tool_use_blocks:,}")
    table.add_row("  without a result", f"{stats.calls_without_result:,}")
    table.add_row("tool results", f"{stats.n_tool_results:,}")
    table.add_row("  without a call", f"{stats.results_without_call:,}")
    table.add_row("tokens in", f"{stats.input_tokens:,}")
    table.add_row("  from the cache", f"{stats.cached_tokens:,}")
    table.add_row("tokens out", f"{stats.output_tokens:,}")
    console.print(table)
    _show_errors(console, stats.errors)
    _show_counts(console, "Passed over", stats.skipped, _SHOWN_SKIPS)
    _show_counts(console, "Recovered from damaged lines", stats.recovered)
    _show_counts(console, "Redacted", stats.redactions)
    for warning in stats.version_warnings or []:
        console.print(f"[yellow]note:[/] {_plain(warning)}")
    for entry in report.with_status("failed"):
        console.print(f"[red]failed:[/] {_plain(entry.source)}: {_plain(entry.reason or '')}")
    console.print(f"{report.seconds:.1f} s")


def _show_errors(console: Console, errors: Counter[str]) -> None:
    if not errors:
        return
    table = Table("tool errors", "count", "whose")
    table.columns[0].overflow = "fold"
    table.columns[1].justify, table.columns[1].no_wrap = "right", True
    for kind, count in errors.most_common():
        whose = "student's" if is_students_mistake(kind) else "[dim]not the student's[/]"
        table.add_row(_plain(kind), f"{count:,}", whose)
    console.print(table)


def _show_counts(console: Console, title: str, counts: Counter[str], most: int | None = None) -> None:
    shown = [(name, count) for name, count in counts.most_common() if count]
    if not shown:
        return
    table = Table(title, "count")
    table.columns[0].overflow = "fold"
    table.columns[1].justify, table.columns[1].no_wrap = "right", True
    for name, count in shown[:most]:
        table.add_row(_plain(name), f"{count:,}")
    rest = shown[most:] if most else []
    if rest:
        table.add_row(f"[dim]{len(rest)} more reasons (--json has them)[/]", f"{sum(count for _, count in rest):,}")
    console.print(table)


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


def show_trace(console: Console, trace: Trace) -> None:
    """A trace turn by turn; error sites and their hints stand out."""
    explained = explain_trace(trace)
    console.rule(_plain(f"{trace.trace_id} · {trace.source.format} {trace.source.version or ''}".rstrip()))
    for turn in explained["turns"]:
        _show_turn(console, turn)
    sites = [turn for turn in explained["turns"] if "tool_error" in turn]
    hinted = sum("hint" in turn for turn in sites)
    console.print(f"{len(explained['turns'])} turns, {len(sites)} error sites, {hinted} with a hint")


def _show_turn(console: Console, turn: ExplainedTurn) -> None:
    colour = _ROLE_COLOURS.get(turn["role"], "white")
    origin = f" ({turn['origin']})" if turn.get("origin") not in (None, "prompt") else ""
    line = f" [dim]line {turn['line']}[/]" if "line" in turn else ""
    if turn.get("context_begins"):
        console.print("[yellow]── the context begins anew here ──[/]")
    console.print(f"[bold {colour}]{turn['index']:>4} {turn['role']}{_plain(origin)}[/]{line}")
    details = [_plain(text) for text in (turn["text"], *turn.get("calls", [])) if text]
    if "error_kind" in turn:
        details.append(f"[red]✗ {_plain(turn['error_kind'])}[/]")
    if "tool_error" in turn:
        whose = "" if turn.get("students_mistake", True) else " (not the student's mistake)"
        details.append(f"[bold red]error site: {_plain(turn['tool_error'])}[/]{whose}")
    if "hint" in turn:
        details.append(f"[yellow]hint: {_plain(' '.join(turn['hint'].split()))}[/]")
    for detail in details:
        console.print(Padding(Text.from_markup(detail, emoji=False), _INDENT, expand=False))
