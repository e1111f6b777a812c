"""Agreement on labelled pairs of actions: do the comparers say "the same" where an engineer does?

`action` reads calls by their meaning, `exact` is equality of the text. Both halves of the labelled set are shown; the
targets are for the half that no comparer was built on. Positive means "the same". `--ablation` switches off each group
of rules in turn, and shows what is lost on both halves and on the pairs of commands.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from reporting import judged, machine, main, targets_table
from rich.console import Console
from rich.table import Table

from composer_replication.teacher_replay.agreement import code, prose
from composer_replication.teacher_replay.agreement.action import ActionComparer
from composer_replication.teacher_replay.agreement.comparison import Comparer, Comparison, ExactComparer
from composer_replication.teacher_replay.agreement.shell import commands, meanings
from composer_replication.traces import dump_json, parse_action

FIXTURES = Path(__file__).parent.parent / "tests" / "teacher_replay" / "fixtures"
HALVES = ("dev", "test")
ROOM = "composer_replication.teacher_replay.agreement"


def nothing(*_: object, **__: object) -> None:
    """A rule that finds nothing."""


def is_not(*_: object, **__: object) -> bool:
    """A question that is always answered with no."""
    return False


def equal_words(first: str, second: str, *_: object, **__: object) -> Comparison:
    """Texts are the same word by word, or not at all."""
    return Comparison(first.split() == second.split(), 0.0)


# Groups of rules: what stands for each function while the group is off.
GROUPS: dict[str, dict[str, Callable[..., object]]] = {
    "tools: files (read, write, edit)": dict.fromkeys(
        ("tool_effects._read", "tool_effects._write", "tool_effects._edit"), nothing
    ),
    "tools: searches": dict.fromkeys(("tool_effects._search", "tool_effects._files"), nothing),
    "tools: notebooks": {"tool_effects._notebook": nothing},
    "arguments of any tool": {"tool_effects.argument_forms": lambda _, given: (tuple(map(str, given.items())), ())},
    "patches": {"tool_effects.is_patch": is_not, "shell.effects.is_patch": is_not},
    "edits by their effect": {"effects.same_edit": lambda first, second, _: first == second},
    "code: comments and quotes": {
        "effects.same_code": lambda first, second, _: first.rstrip() == second.rstrip(),
        "edits.without_comments": lambda text, *_, **__: (text, ()),
    },
    "code: Python by its tree": {"tool_effects.python_form": nothing, "shell.effects.python_form": nothing},
    "prose": dict.fromkeys(("action.likeness", "effects.likeness", "code.likeness"), equal_words),
    "prose: synonyms": {"prose.meaning": str.lower},
    "independent effects change places": {"effects._independent": is_not},
    "shell: syntax": {"shell.steps.parse": nothing},
    "shell: directories and variables": {"shell.steps._changes_surroundings": is_not},
    "shell: wrappers": {"shell.steps._unwrap": nothing, "shell.steps.script_of": nothing},
    "shell: pipelines": {"shell.effects.shortened": lambda step: (step.stages, step.documents)},
    "shell: files shown": {"shell.effects.viewed": nothing},
    "shell: files written": dict.fromkeys(("shell.effects.written", "shell.effects.literal_substitution"), nothing),
    "shell: searches": {
        "shell.effects.line_search_form": nothing,
        "shell.effects.find_form": lambda line, directory: line.form(directory),
    },
    "shell: other names": {"shell.lines.usual_words": lambda name, arguments: (name, arguments)},
    "shell: what only reads": dict.fromkeys(("shell.effects.only_reads", "shell.steps.only_reads"), is_not),
}


def labelled(half: str) -> list[dict[str, Any]]:
    """The rows of one half: two actions, whether they are the same, and the kind of case."""
    return _rows(f"actions_{half}")


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def command_pairs() -> list[dict[str, Any]]:
    """The pairs of commands, each as a call."""
    rows = _rows("command_pairs")
    call = "[TOOL_USE] name=Bash input="
    calls = [{key: call + dump_json({"command": row[key]}) for key in ("first", "second")} for row in rows]
    return [{**row, **actions, "kind": "command"} for row, actions in zip(rows, calls, strict=True)]


def figures(rows: list[dict[str, Any]], comparer: Comparer) -> dict[str, Any]:
    """Precision and recall, over all rows and by kind."""
    by_kind: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for row in rows:
        said_same = comparer(parse_action(row["first"]), parse_action(row["second"])).same
        by_kind[row["kind"]].append((row["same"], said_same))
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


@contextmanager
def without(group: str) -> Iterator[None]:
    """Switch a group of rules off. "options: …" and "rules: …" name parts of the shell's tables."""
    kind, _, name = group.partition(": ")
    with ExitStack() as stack:
        if kind == "options":
            known = stack.enter_context(patch.dict(commands.commands()))
            for command in _sections()[name]:
                known[command] = commands.UNKNOWN
        elif kind == "rules":
            rules = stack.enter_context(patch.dict(meanings.RULES))
            for command in [one for one in rules if _program(one) == name]:
                del rules[command]
        else:
            for place, stand_in in GROUPS[group].items():
                stack.enter_context(patch(f"{ROOM}.{place}", stand_in))
        _forget()
        yield
    _forget()


def _forget() -> None:
    """What was found with other rules."""
    prose.taken_apart.cache_clear()
    code.without_comments.cache_clear()


def _sections() -> dict[str, list[str]]:
    """The commands of the table, by the headings in it."""
    found: dict[str, list[str]] = {}
    for line in commands.TABLE.splitlines():
        if line.startswith("# "):
            heading = line.strip("# .")
            found[heading] = []
        elif line and not line.startswith(" "):
            found[heading] += line.partition(":")[0].split(", ")
    return found


def _program(command: str) -> str:
    return "versions" if meanings.RULES[command] is meanings.version_form else command.partition(" ")[0]


def ablation() -> dict[str, Any]:
    """What each group of rules earns: the figures of every set of pairs without it, and without anything missing."""
    sets = {**{half: labelled(half) for half in HALVES}, "commands": command_pairs()}
    groups = [*GROUPS, *(f"options: {name}" for name in _sections())]
    groups += [f"rules: {name}" for name in sorted(set(map(_program, meanings.RULES)))]
    rows = {"everything": _figures_of_sets(sets)}
    for group in groups:
        with without(group):
            rows[f"without {group}"] = _figures_of_sets(sets)
    return {"benchmark": "agreement_ablation", "machine": machine("rapidfuzz"), "results": rows, "targets": []}


def _figures_of_sets(sets: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    found = {name: figures(pairs, ActionComparer()) for name, pairs in sets.items()}
    return {name: {key: one[key] for key in ("pairs", "right", "precision", "recall")} for name, one in found.items()}


def show(found: dict[str, Any]) -> None:
    """Print the figures as tables."""
    table = Table("half", "comparer", "pairs", "same", "said so", "rightly", "precision", "recall", title="agreement")
    for half, comparers in found["results"].items():
        for name, rates in comparers.items():
            counts = [str(rates[key]) for key in ("pairs", "same", "said_same", "right")]
            table.add_row(half, name, *counts, f"{rates['precision']:.3f}", f"{rates['recall']:.3f}")
    Console().print(table, targets_table(found), sep="\n", highlight=False)


def show_ablation(found: dict[str, Any]) -> None:
    """Print what is lost without each group: pairs rightly called the same, and precision where it falls."""
    whole = found["results"]["everything"]
    table = Table("rules", *whole, title="precision / recall, and what a group earns")
    for group, sets in found["results"].items():
        cells = []
        for name, rates in sets.items():
            lost = rates["right"] - whole[name]["right"]
            cells.append(f"{rates['precision']:.3f} / {rates['recall']:.3f}" + (f" ({lost:+d})" if lost else ""))
        table.add_row(group, *cells)
    Console().print(table, highlight=False)


if __name__ == "__main__":
    main(
        lambda arguments: ablation() if arguments.ablation else report(),
        show=lambda found: show(found) if found["targets"] else show_ablation(found),
        options={"--ablation": {"action": "store_true", "help": "show what each group of rules earns"}},
    )
