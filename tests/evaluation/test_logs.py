"""Held-out logs: which turns are scored how, against plain logits; corrections; what is measured by session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ingestion.claude_sessions import Session
from run.training_material import pair, trace_folder

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.evaluation.log_scores import RenderedLogs
from composer_replication.evaluation.logs import corrections, log_measures
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.ingestion.pipeline import ingest_logs
from composer_replication.ingestion.store import load_traces
from composer_replication.teacher_replay.records import Pair
from composer_replication.traces import Trace
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.trace_rows import TraceRow


def held_out_logs() -> RenderedLogs:
    config = CollatorConfig(
        hint_generator=as_collator_hint(LayeredHints()), train_on_errors=False, enable_replay_dpo=False
    )
    return RenderedLogs(ComposerDataCollator(tiny_tokenizer("qwen2_5"), config))


def logprob(model: Any, ids: list[int], spans: list[tuple[int, int]]) -> float:
    """By plain logits of one row."""
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(float(logprobs[place - 1, ids[place]]) for span in spans for place in range(*span))


def test_turns_are_scored_as_plain_logits_would(tmp_path: Path) -> None:
    logs, model = held_out_logs(), tiny_model(vocab_size=640, seed=1)
    traces = [(trace.trace_id, trace) for trace in load_traces(trace_folder(tmp_path, sessions=3))]
    logs.add_traces(traces)
    outcomes = logs.score(model, batch_size=2)
    rows = [row for _, row in logs.rows if isinstance(row, TraceRow)]
    good = [one for one in outcomes if one["kind"] == "good_turns"]
    erring = [one for one in outcomes if one["kind"] == "erring_turn"]
    assert len(rows) == len(good) == len(erring) == 3
    tokenizer = logs.collator.tokenizer
    for row, fine, wrong in zip(rows, good, erring, strict=True):
        ids, (site,) = list(row.ids), row.sites
        mask = [(place, place + 1) for place, is_own in enumerate(row.response_mask) if is_own]
        said = tokenizer.decode([ids[start] for start, _ in mask])  # type: ignore[attr-defined]
        assert '"path"' not in said
        assert '"file_path"' in said
        assert '"path"' in tokenizer.decode(ids[slice(*site.spans[0])])  # type: ignore[attr-defined]
        assert fine["logprob"] == pytest.approx(logprob(model, ids, mask), abs=1e-3)
        assert (fine["tokens"], wrong["tokens"]) == (len(mask), len(site.tokens()))
        assert wrong["logprob"] == pytest.approx(logprob(model, ids, list(site.spans)), abs=1e-3)
        shifted = [(start + site.shift, stop + site.shift) for start, stop in site.spans]
        assert wrong["hinted_logprob"] == pytest.approx(logprob(model, site.hinted(ids), shifted), abs=1e-3)
        assert wrong["hinted_logprob"] != pytest.approx(wrong["logprob"], abs=1e-3)
    # The order and the batches are not to be seen in the results.
    seen: list[tuple[int, int]] = []
    again = logs.score(model, batch_size=64, on_progress=lambda *progress: seen.append(progress))
    assert [one["kind"] for one in again] == [one["kind"] for one in outcomes]
    assert [one.get("logprob", 0) for one in again] == pytest.approx([one.get("logprob", 0) for one in outcomes])
    assert seen[-1] == (3, 3)


def test_a_correction_is_scored_in_place_of_the_turn_that_erred(tmp_path: Path) -> None:
    logs, model = held_out_logs(), tiny_model(vocab_size=640, seed=1)
    (trace,) = load_traces(trace_folder(tmp_path, sessions=1))
    logs.add_traces([("s", trace)])
    logs.add_pairs((("s", pair) for pair in corrections(trace)), "correction")
    (correction,) = [one for one in logs.score(model, batch_size=1) if one["kind"] == "correction"]
    (turns,) = [row for _, row in logs.rows if isinstance(row, TraceRow)]
    (site,) = turns.sites
    assert correction["pair"] == f"{trace.trace_id}::0000"
    # The turn that erred has the same context in both.
    assert correction["rejected_logprob"] == pytest.approx(logprob(model, list(turns.ids), list(site.spans)), abs=1e-3)
    assert correction["rejected_tokens"] == len(site.tokens())
    measured = log_measures([correction])
    preferred = correction["chosen_logprob"] > correction["rejected_logprob"]
    assert measured["corrections_preferred"].clusters == {"s": (float(preferred), 1.0)}
    assert measured["correction_logprob"].clusters["s"].number == correction["chosen_tokens"]


def session(tmp_path: Path, *steps: tuple[str, dict[str, str], str | None]) -> Trace:
    """A session of calls, each with its error or None."""
    made = Session(session_id="5e551000")
    made.prompt("Read the file a.py, please.")
    for number, (tool, arguments, error) in enumerate(steps):
        made.calls(f"m{number}", f"c{number}", tool, **arguments)
        made.result(f"c{number}", error or "x = 0", is_error=error is not None)
    made.says("end", "Done.")
    made.write(tmp_path / "logs", "s.jsonl")
    ingest_logs([str(tmp_path / "logs")], tmp_path / "traces", processes=1)
    (trace,) = load_traces(tmp_path / "traces")
    return trace


WRONG = (
    "<tool_use_error>InputValidationError: Read failed: the required parameter `file_path` is missing</tool_use_error>"
)
UNKNOWN = "<tool_use_error>Error: No such tool available: Open</tool_use_error>"


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([("Read", {"path": "a.py"}, WRONG), ("Read", {"file_path": "a.py"}, None)], 1),
        ([("Open", {"file_path": "a.py"}, UNKNOWN), ("Read", {"file_path": "a.py"}, None)], 1),
        # Another action, another failure, and nothing wrong.
        ([("Read", {"path": "a.py"}, WRONG), ("Bash", {"command": "ls"}, None)], 0),
        ([("Read", {"path": "a.py"}, WRONG), ("Read", {"file": "a.py"}, WRONG)], 0),
        ([("Read", {"file_path": "b.py"}, None), ("Read", {"file_path": "a.py"}, None)], 0),
    ],
)
def test_what_counts_as_a_correction(tmp_path: Path, steps: list[Any], count: int) -> None:
    found = list(corrections(session(tmp_path, *steps)))
    assert len(found) == count
    for one in found:
        assert one.rejected.tool_calls[0].name == steps[0][0]
        assert one.chosen.tool_calls[0].arguments == steps[1][1]


def test_pairs_are_scored_with_their_sessions_and_those_that_cannot_be_used_are_counted() -> None:
    logs, model = held_out_logs(), tiny_model(vocab_size=640, seed=1)
    long = [{"role": "user", "content": "Show me the file. " * 9}]  # the longest are scored first
    rows = [Pair.of(pair(0)), Pair.of(pair(1, chosen="")), Pair.of(pair(2, state_messages=long))]
    logs.add_pairs(zip(("a", "b", "c"), rows, strict=True))
    outcomes = logs.score(model, batch_size=8)
    assert [(one["session"], one["pair"]) for one in outcomes] == [("a", "s::0000"), ("c", "s::0002")]
    assert logs.stats.dropped() == "1 empty side"
    for (_, row), one in zip(logs.rows, outcomes, strict=True):
        assert not isinstance(row, TraceRow)
        for side, ids in (("chosen", row.chosen_ids), ("rejected", row.rejected_ids)):
            start = len(row.prompt_ids)
            expected = logprob(model, [*row.prompt_ids, *ids], [(start, start + len(ids))])
            assert one[f"{side}_logprob"] == pytest.approx(expected, abs=1e-3)


def test_preference_by_the_sum_and_by_the_mean_over_tokens() -> None:
    def outcome(session: str, chosen: tuple[float, int], rejected: tuple[float, int]) -> dict[str, Any]:
        sides = {"chosen_logprob": chosen[0], "chosen_tokens": chosen[1]}
        return {
            "kind": "pair",
            "session": session,
            **sides,
            "rejected_logprob": rejected[0],
            "rejected_tokens": rejected[1],
        }

    measured = log_measures(
        [
            outcome("a", (-4.0, 8), (-3.0, 2)),  # less likely, but more so per token
            outcome("a", (-1.0, 2), (-3.0, 2)),
            outcome("b", (-3.0, 2), (-3.0, 2)),  # a tie is no preference
        ]
    )
    assert measured["pairs_preferred"].clusters == {"a": (1.0, 2.0), "b": (0.0, 1.0)}
    assert measured["pairs_preferred_per_token"].clusters == {"a": (2.0, 2.0), "b": (0.0, 1.0)}
    assert measured["chosen_logprob"].clusters == {"a": (-5.0, 10.0), "b": (-3.0, 2.0)}
    assert measured["rejected_logprob"].clusters == {"a": (-6.0, 4.0), "b": (-3.0, 2.0)}
    assert set(measured) == {"pairs_preferred", "pairs_preferred_per_token", "chosen_logprob", "rejected_logprob"}
