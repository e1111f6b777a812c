"""Results in memory and on disk: summaries, comparisons, and files that are read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer_replication.evaluation.intervals import perplexity, wilson
from composer_replication.evaluation.paired import mcnemar
from composer_replication.evaluation.results import (
    Evaluation,
    Measure,
    Outcome,
    is_saved,
    measure,
    read_results,
    summarised,
    write_results,
)


def outcomes(passed: str) -> list[Outcome]:
    return [{"task": f"t{number}", "passed": one == "1", "tokens": 3} for number, one in enumerate(passed)]


def measures(given: Any) -> dict[str, Measure]:
    return {
        "passed": measure(given, "task", lambda one: one["passed"], is_share=True),
        "surprise": measure(given, "task", lambda one: -one["passed"], lambda one: one["tokens"])._replace(
            statistic=perplexity
        ),
    }


def evaluation(name: str, passed: str, **settings: Any) -> Evaluation:
    return Evaluation("environment", name, {"seed": 0, **settings}, outcomes(passed))


def test_a_measure_adds_up_by_cluster() -> None:
    rows = [{"session": "a", "x": 1.5, "w": 2}, {"session": "b", "x": 1.0, "w": 1}, {"session": "a", "x": 0.5, "w": 5}]
    assert measure(rows, "session", lambda one: one["x"], lambda one: one["w"]) == (
        {"a": (2.0, 7.0), "b": (1.0, 1.0)},
        *Measure({})[1:],
    )


def test_a_summary_has_intervals_and_paired_differences() -> None:
    alone = summarised(evaluation("ours", "1111111100"), None, measures)
    low, high = wilson(8, 10)
    assert alone["measures"]["passed"] == {
        "value": 0.8,
        "low": low,
        "high": high,
        "method": "wilson",
        "clusters": 10,
    }
    assert alone["measures"]["surprise"]["value"] == pytest.approx(2.718281828 ** (8 / 30))
    assert (alone["model"], alone["settings"], "against" in alone) == ("ours", {"seed": 0}, False)
    assert alone["versions"]["torch"]
    both = summarised(evaluation("ours", "1111111100"), evaluation("theirs", "0000001110"), measures)
    assert both["against"]["model"] == "theirs"
    assert both["against"]["measures"]["passed"]["value"] == 0.3
    assert both["differences"]["passed"]["p_value"] == mcnemar(6, 1)
    assert both["differences"]["surprise"]["difference"] == pytest.approx(2.718281828 ** (8 / 30) - 2.718281828**0.1)
    assert json.loads(json.dumps(both)) == both


def test_results_of_other_settings_or_tasks_are_not_compared() -> None:
    ours = evaluation("ours", "1100", temperature=1.0)
    with pytest.raises(ValueError, match=r"theirs was evaluated with temperature 0.5, and ours with 1.0"):
        summarised(ours, evaluation("theirs", "1100", temperature=0.5), measures)
    with pytest.raises(ValueError, match=r"theirs was evaluated with k 4, and ours with None"):
        summarised(ours, evaluation("theirs", "1100", temperature=1.0, k=4), measures)
    with pytest.raises(ValueError, match=r"not of the same tasks: 1 only in the second \(t4\)"):
        summarised(ours, evaluation("theirs", "11001", temperature=1.0), measures)


def test_files_are_written_whole_and_read_again(tmp_path: Path) -> None:
    ours, theirs = evaluation("ours", "10"), evaluation("theirs", "01")
    folder = tmp_path / "deep" / "results"
    assert not is_saved(folder)
    write_results(folder, summarised(ours, theirs, measures), ours, theirs)
    assert sorted(file.name for file in folder.iterdir()) == ["against.jsonl", "results.jsonl", "summary.json"]
    assert is_saved(folder)
    assert read_results(folder) == ours
    assert [json.loads(line) for line in (folder / "against.jsonl").read_text().splitlines()] == theirs.outcomes
    (folder / "results.jsonl").write_text('{"task": "t0"')
    with pytest.raises(ValueError, match="has no results that can be read"):
        read_results(folder)
