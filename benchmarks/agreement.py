"""Agreement on labelled pairs of actions: do the comparers say "the same" where an engineer does?

`action` reads calls by their meaning, `exact` is equality of the text; both halves of the labelled set are shown, the
targets are for the half that no comparer was built on. Positive means "the same".
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from reporting import argument_parser, judged, machine
from rich.console import Console
from rich.table import Table

from composer_replication.teacher_replay.agreement.action import ActionComparer
from composer_replication.teacher_replay.agreement.comparison import Comparer, ExactComparer
from composer_replication.traces import parse_action

FIXTURES = Path(__file__).parent.parent / "tests" / "teacher_replay" / "fixtures"
HALVES = ("dev", "test")


def labelled(half: str) -> list[dict[str, Any]]:
    """The rows of one half: two actions, whether they are the same, and the kind of case."""
    lines = (FIXTURES / f"actions_{half}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def figures(rows: list[dict[str, Any]], comparer: Comparer) -> dict[str, Any]:
    """Precision and recall, over all rows and by kind."""
    by_kind: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(
            (row["same"], comparer(parse_action(row["first"]), parse_action(row["second"])).same)
        )
    everything = [outcome for outcomes in by_kind.values() for outcome in outcomes]
    kinds = {kind: _rates(outcomes) for kind, outcomes in sorted(by_kind.items())}
    return {**_rates(everything), "by_kind": kinds}


def _rates(outcomes: list[tuple[bool, bool]]) -> dict[str, Any]:
    right = sum(label and said for label, said in outcomes)
    said_same = sum(said for _, said in outcomes)
    are_same = sum(label for label, _ in outcomes)
    return {
        "pairs": len(outcomes),
        "same": are_same,
        "said_same": said_same,
        "right": right,
        # Nothing said is nothing wrong.
        "precision": right / said_same if said_same else 1.0,
        "recall": right / are_same if are_same else 1.0,
    }


def report() -> dict[str, Any]:
    """Both comparers on both halves, and the targets."""
    comparers: dict[str, Comparer] = {"action": ActionComparer(), "exact": ExactComparer()}
    results = {
        half: {name: figures(labelled(half), comparer) for name, comparer in comparers.items()} for half in HALVES
    }
    judged_on = results["test"]["action"]
    return {
        "benchmark": "agreement",
        "machine": machine("rapidfuzz"),
        "shape": {f"{half}_pairs": results[half]["action"]["pairs"] for half in HALVES},
        "results": results,
        "targets": [
            judged("agreement_precision", judged_on["precision"], ">=0.98"),
            judged("agreement_recall", judged_on["recall"], ">=0.9"),
        ],
    }


def show(found: dict[str, Any]) -> None:
    """The figures as tables."""
    table = Table("half", "comparer", "pairs", "same", "said so", "rightly", "precision", "recall", title="agreement")
    for half, comparers in found["results"].items():
        for name, rates in comparers.items():
            counts = [str(rates[key]) for key in ("pairs", "same", "said_same", "right")]
            table.add_row(half, name, *counts, f"{rates['precision']:.3f}", f"{rates['recall']:.3f}")
    targets = Table("target", "value", "bound", "holds")
    for target in found["targets"]:
        targets.add_row(target["name"], f"{target['value']:.3f}", target["bound"], "yes" if target["holds"] else "NO")
    Console().print(table, targets, sep="\n", highlight=False)


def main() -> int:
    """Compare and report; nothing is timed, so there is nothing to shorten or repeat."""
    arguments = argument_parser(__doc__).parse_args()
    found = report()
    print(json.dumps(found)) if arguments.json else show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
