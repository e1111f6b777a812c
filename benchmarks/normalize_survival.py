"""How many tool-call pairs each operator drops: the limits for prose, and the default recipe's.

The pairs are all different and all worth keeping (tool_call_pairs.py): every one that is dropped is a loss. A second
set is of students that are stuck: of the pairs that only repeat the one before, every one that stays is too many; the
pairs beside them look much the same, and are worth keeping. `--recipe` adds a recipe of your own.
"""

from __future__ import annotations

import argparse
from typing import Any

from reporting import judged, machine, main
from rich.console import Console
from rich.table import Table
from tool_call_pairs import stuck_pairs, tool_call_pairs

from composer_replication.replaysim import DJNormalizer

FULL_PAIRS, QUICK_PAIRS = 10_000, 1_000


def survival(recipe: str, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """What one recipe does to the pairs that make a call."""
    normalizer = DJNormalizer(recipe)
    normalizer.normalize(pairs)
    report = normalizer.report
    assert report is not None
    return {
        "tool_call_pairs": report.tool_call_pairs_in,
        "kept": report.tool_call_pairs_out,
        "dropped": {f"{one.op} on {one.field}": one.dropped_tool_calls for one in report.ops},
        "examples": {one.reason.partition(":")[0]: one.reason for one in reversed(report.dropped) if one.tool_call},
    }


def repeats(recipe: str, pairs: list[dict[str, Any]], is_repeat: list[bool]) -> dict[str, Any]:
    """What one recipe does to the pairs of students that are stuck: by operator, repeats and others that it drops."""
    normalizer = DJNormalizer(recipe)
    normalizer.normalize(pairs)
    report = normalizer.report
    assert report is not None
    dropped = {f"{one.op} on {one.field}": {"repeats": 0, "others": 0} for one in report.ops}
    for one in report.dropped:
        dropped[f"{one.op} on {one.field}"]["repeats" if is_repeat[one.index] else "others"] += 1
    return {"repeats": sum(is_repeat), "others": len(pairs) - sum(is_repeat), "dropped": dropped}


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both recipes over the same pairs."""
    count = arguments.pairs or (QUICK_PAIRS if arguments.quick else FULL_PAIRS)
    pairs, stuck = tool_call_pairs(count, seed=1), stuck_pairs(count // 5, seed=1)
    results = {
        recipe: {**survival(recipe, pairs), "stuck": repeats(recipe, *stuck)}
        for recipe in ("prose", "default", *arguments.recipe)
    }
    kept = results["default"]["kept"] / results["default"]["tool_call_pairs"]
    of_stuck = results["default"]["stuck"]
    gone = {kind: sum(one[kind] for one in of_stuck["dropped"].values()) for kind in ("repeats", "others")}
    return {
        "benchmark": "normalize_survival",
        "machine": machine("py-data-juicer"),
        "shape": {"pairs": count},
        "results": results,
        "targets": [
            judged("tool_call_pairs_kept", kept, ">=0.99"),
            judged("repeats_dropped", gone["repeats"] / of_stuck["repeats"], ">=0.99"),
            judged("others_dropped_with_them", gone["others"], "<=0"),
        ],
    }


def print_report(made: dict[str, Any]) -> None:
    """A table for each recipe."""
    console = Console(highlight=False)
    for recipe, figures in made["results"].items():
        stuck = figures["stuck"]
        title = f"recipe {recipe}: {figures['kept']:,} of {figures['tool_call_pairs']:,} tool-call pairs kept"
        headings = (f"{stuck['repeats']:,} repeats", f"{stuck['others']:,} beside them")
        table = Table("dropped by", "pairs", *headings, "the first of the pairs", title=title, title_justify="left")
        for column in table.columns[1:4]:
            column.justify = "right"
        for step, dropped in figures["dropped"].items():
            counts = (dropped, *stuck["dropped"][step].values())
            first = figures["examples"].get(step, "").partition(": ")[2]
            table.add_row(step, *(f"{count:,}" for count in counts), first)
        console.print(table)
    for target in made["targets"]:
        holds = "yes" if target["holds"] else "NO"
        console.print(f"{target['name']} {target['value']:.4f}, bound {target['bound']}, holds: {holds}")


if __name__ == "__main__":
    options = {
        "--pairs": {"type": int, "help": "how many pairs"},
        "--recipe": {"action": "append", "default": [], "help": "another recipe to try"},
    }
    main(report, show=print_report, options=options)
