"""Terminal output of `replay`: the estimated cost, and the summary."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from composer_replication.teacher_replay.estimate import ReplayEstimate
from composer_replication.teacher_replay.prices import to_usd
from composer_replication.teacher_replay.replay_report import ReplayReport
from composer_replication.teacher_replay.schedule import ReplayOptions


def show_estimate(console: Console, estimate: ReplayEstimate, options: ReplayOptions) -> None:
    """Show the estimated cost of a replay."""
    teachers = estimate.teachers.values()
    table = _by_teacher(estimate.teachers)
    table.add_row("calls", *(f"{one.calls:,}" for one in teachers))
    table.add_row("stored answers", *(f"{one.stored:,}" for one in teachers))
    table.add_row("too long for it", *(f"{one.too_long:,}" for one in teachers))
    table.add_row("tokens in", *(f"{one.prompt_tokens:,}" for one in teachers))
    table.add_row("  of them cached", *(f"{one.cached_tokens:,}" for one in teachers))
    table.add_row("expected", *(_dollars(one.expected) for one in teachers))
    table.add_row("  without prompt cache", *(_dollars(one.uncached) for one in teachers))
    console.print(table)
    console.print(f"{estimate.states:,} states of {estimate.traces:,} traces; tokens are counted as four bytes each")
    if estimate.at_least != estimate.at_most:
        console.print(f"with the gate: between {_dollars(estimate.at_least)} and {_dollars(estimate.at_most)}")
    else:
        console.print(f"expected: {_dollars(estimate.at_most)}")
    highest = max((teacher.dearest_call for teacher in estimate.teachers.values()), default=0)
    console.print(f"one call reserves at most {_dollars(highest)}; the cap is ${options.max_total_usd:,.2f}")
    _show_families(console, estimate.same_family, list(estimate.same_family) if options.exclude_same_family else [])


def show_replay(console: Console, report: ReplayReport, folder: Path, cap: float) -> None:
    """Show the summary of a replay."""
    uses = report.teachers.values()
    table = _by_teacher(report.teachers)
    table.add_row("answered", *(f"{use.answered:,}" for use in uses))
    table.add_row("stored answers", *(f"{use.stored:,}" for use in uses))
    table.add_row("cut at max_output_tokens", *(f"{use.cut:,}" for use in uses))
    table.add_row("unusable", *(f"{use.unusable:,}" for use in uses))
    table.add_row("not asked: the gate", *(f"{use.gated:,}" for use in uses))
    table.add_row("not asked: the cap", *(f"{use.no_room:,}" for use in uses))
    table.add_row("too long for it", *(f"{use.too_long:,}" for use in uses))
    table.add_row("failed", *(f"{use.failed:,}" for use in uses))
    table.add_row("retries", *(f"{use.retries:,}" for use in uses))
    table.add_row("spent", *(_dollars(use.cost) for use in uses))
    table.add_row("tokens in", *(f"{use.prompt_tokens:,}" for use in uses))
    table.add_row("  of them cached", *(f"{use.cached_tokens:,}" for use in uses))
    table.add_row("tokens out", *(f"{use.completion_tokens:,}" for use in uses))
    table.add_row("latency, median", *(_seconds(use.latency(0.5)) for use in uses))
    table.add_row("  95 %", *(_seconds(use.latency(0.95)) for use in uses))
    console.print(table)
    figures = report.as_dict()
    console.print(
        f"{figures['states']:,} states of {figures['traces']:,} traces, {figures['calls']:,} calls, "
        f"${figures['spent_usd']:.4f} spent; saved: ledger ${figures['saved_by_ledger_usd']:.4f}, prompt cache "
        f"${figures['saved_by_prompt_cache_usd']:.4f}, gate about ${figures['saved_by_gate_usd']:.4f}"
    )
    balance = report.balance
    if balance is not None:
        console.print(f"this ledger's budget: {_dollars(balance.spent)} of ${cap:,.2f} spent")
        if balance.in_doubt:
            console.print(
                f"[yellow]in doubt:[/] {balance.in_doubt} calls may have been billed without an answer; "
                f"{_dollars(balance.in_doubt_reserved)} stay reserved for them until --release"
            )
        if balance.repeated:
            console.print(f"[yellow]repeated:[/] {balance.repeated} calls in doubt were made a second time")
    if figures["not_asked_for_money"]:
        console.print(
            f"[yellow]the cap:[/] {figures['not_asked_for_money']:,} calls were not made, their worst case is more "
            f"than is left of ${cap:,.2f}; raise --max-usd and run again"
        )
    for slug, use in report.teachers.items():
        if use.cut:
            console.print(
                f"[yellow]cut:[/] {escape(slug)}: {use.cut:,} answers ({_dollars(use.cut_cost)}) ended at their limit "
                "of tokens and are no actions; raise its max_output_tokens and run again"
            )
        if use.last_unusable:
            console.print(
                f"[yellow]unusable:[/] {escape(slug)}: {use.unusable:,} answers ({_dollars(use.unusable_cost)}); "
                f"the last time, {escape(use.last_unusable)}"
            )
        if use.left_alone:
            console.print(f"[red]left alone:[/] {escape(slug)}: {escape(use.left_alone)}")
        elif use.last_error:
            console.print(f"[yellow]failed:[/] {escape(slug)}: the last time, {escape(use.last_error)}")
        if use.last_too_long:
            way_out = "--max-history-tokens shortens prompts"
            console.print(f"[yellow]too long:[/] {escape(slug)}: {escape(use.last_too_long)}; {way_out}")
    _show_families(console, report.same_family, report.excluded)
    console.print(f"answers: {escape(str(folder))}")


def progress_line(report: ReplayReport, questions: int, left: str) -> str:
    """Return the progress as one line; a question is one state for one teacher."""
    uses = report.teachers.values()
    counts = {
        "answered": sum(use.answered for use in uses),
        "stored": sum(use.stored for use in uses),
        "cut": sum(use.cut for use in uses),
        "unusable": sum(use.unusable for use in uses),
        "not asked": sum(use.gated + use.no_room for use in uses),
        "too long": sum(use.too_long for use in uses),
        "failed": sum(use.failed for use in uses),
    }
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    parts = [f"{report.settled:,} of {questions:,} questions", shown, f"{_dollars(report.spent)} spent", left]
    return " | ".join(part for part in parts if part)


def _by_teacher(slugs: Iterable[str]) -> Table:
    """A column for each teacher: names fold where numbers must not."""
    table = Table("")
    for slug in slugs:
        table.add_column(escape(slug), justify="right", overflow="fold")
    return table


def _show_families(console: Console, same_family: dict[str, str], excluded: list[str]) -> None:
    for slug, family in same_family.items():
        what = "is not asked" if slug in excluded else "teaches its own kind (--exclude-same-family leaves it out)"
        console.print(f"[yellow]same family:[/] {escape(slug)} is a {escape(family)}, as the student was; it {what}")


def _dollars(nano: int) -> str:
    return f"${to_usd(nano):,.4f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
