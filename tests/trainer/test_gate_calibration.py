"""The gate's threshold: foreign hints only, measured as plain passes measure them, once, and kept."""

from __future__ import annotations

import json
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from trainer.test_trace_trainer import house_traces

from composer_replication.channels.hint_distillation import HintGate
from composer_replication.channels.settings import ChannelSettings
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.trainer.channel_engine import ChannelEngine, site_numbers
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.gate_calibration import GateCalibration, HintedTurn, RowCalibration
from composer_replication.trainer.sites import HintSite
from composer_replication.trainer.trace_rows import rendered_traces

# What each trace in turn is told; the first two are told the same.
TEXTS = (
    *("Signature: read_file(path) in this house.", "Signature: read_file(path) in this house.", "Stay calm."),
    *("Take your time.", "The weather is fine.", "All is well."),
)


def turn(session: str, hint: str, row: int = 0, length: int = 2) -> HintedTurn:
    site = HintSite(tuple(range(length)), 3, ((5, 9),), kind="k", source="tool", hint=hint)
    return HintedTurn(session, row, site)


def drawn(turns: Sequence[HintedTurn], wanted: int = 80, **options: Any) -> list[HintedTurn]:
    return GateCalibration(wanted, 0.95, "7").draw(turns, **options)


def test_only_hints_of_other_sessions_are_foreign() -> None:
    turns = [turn("a", "1"), turn("a", "2", 1), turn("b", "2", 2), turn("b", "3", 3), turn("c", "4", 4)]
    pairs = [(one.row, one.site.hint) for one in drawn(turns)]
    # "2" is told in a and in b: it is foreign to c alone.
    foreign = {0: "34", 1: "34", 2: "14", 3: "14", 4: "123"}
    assert sorted(pairs) == sorted((row, text) for row, texts in foreign.items() for text in texts)
    assert all(one.session == turns[one.row].session and one.site.spans == ((5, 9),) for one in drawn(turns))
    assert drawn([turn("a", "1"), turn("b", "1")]) == drawn([turn("a", "1"), turn("a", "2")]) == drawn([]) == []


def test_every_turn_has_one_before_any_has_two_and_the_draw_is_seeded() -> None:
    turns = [turn(str(number), str(number), number) for number in range(6)]
    before, state = torch.get_rng_state(), random.getstate()
    rows = Counter(one.row for one in drawn(turns, 9))
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == state
    assert sorted(rows.values()) == [1, 1, 1, 2, 2, 2]
    assert drawn(turns, 9) == drawn(turns, 9)
    assert drawn(turns, 9) != GateCalibration(9, 0.95, "8").draw(turns)
    assert len(drawn(turns, 9, processes=2)) == 5
    # A turn is found though most have no foreign hint: all of a but one are told what b is told.
    crowd = [*(turn("a", "1", number) for number in range(50)), turn("b", "1", 50), turn("b", "2", 51)]
    assert [one.site.hint for one in drawn(crowd, 1)] == ["2"]
    crowd = [*(turn("a", "1", number) for number in range(50)), turn("b", "1", 50), turn("a", "2", 51)]
    assert [(one.row, one.site.hint) for one in drawn(crowd, 1)] == [(50, "2")]


def test_a_hint_that_does_not_fit_is_not_drawn() -> None:
    turns = [turn("a", "1", 0, length=2), turn("b", "2", 1, length=4)]
    assert [one.row for one in drawn(turns, max_length=11)] == [1]
    assert sorted(one.row for one in drawn(turns, max_length=13)) == [0, 1]


def test_hints_of_other_processes_are_foreign_too() -> None:
    own = [[turn(f"prompt {number}", f"hint {number}", row) for row in range(4)] for number in range(2)]
    everyones = [one.told() for turns in own for one in turns]
    states = []
    for number, turns in enumerate(own):
        calibration = GateCalibration(6, 0.95, "7")
        calibration.hear(json.loads(json.dumps(everyones)))
        found = calibration.draw(turns, process=number, processes=2)
        assert [one.site.hint for one in found] == [f"hint {1 - number}"] * 3
        states.append(calibration.state_dict())
    assert json.dumps(states[0]) == json.dumps(states[1])
    # Each process throws its own dice; without others, nothing depends on what was heard before.
    turns = [turn(str(number), str(number), number) for number in range(6)]
    alone, heard, second = (GateCalibration(9, 0.95, "7") for _ in range(3))
    heard.hear(one.told() for one in turns)
    assert alone.draw(turns) == heard.draw(turns) != second.draw(turns, process=1)


def test_a_measurement_that_is_not_finite_is_refused() -> None:
    for odd in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"changes a turn by {odd} nats, so the teacher's log-probabilities"):
            GateCalibration(2, 0.95, "7").add([0.1, odd])


def test_what_one_generation_lacks_comes_with_the_next(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = GateCalibration(3, 0.5, "7")
    first.add([0.0] * len(first.draw([turn("a", "1")])))
    assert first.threshold is None
    resumed = GateCalibration(3, 0.5, "7")
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    # The hint of the first generation is foreign to the turns of the second.
    (only,) = resumed.draw([turn("b", "2")])
    assert only.site.hint == "1"
    resumed.add([0.4])
    resumed.add([0.1])
    assert resumed.threshold is None
    resumed.add([0.3])
    assert resumed.threshold == pytest.approx(0.3)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.WARNING, logging.INFO, logging.INFO]
    assert "with 3 foreign hints, 1 were measured so far" in caplog.messages[1]


def collator(texts: Sequence[str]) -> ComposerDataCollator:
    left = iter(texts)
    config = CollatorConfig(hint_generator=lambda kind, meta: next(left))
    return ComposerDataCollator(tokenizer=laboratory_tokenizer(), config=config)


def engine(gate: HintGate) -> ChannelEngine:
    settings = ChannelSettings(beta_replay=0.0, hint_gate=gate)
    return ChannelEngine(laboratory_model(), settings, pairs=None, channels={"lm": 1.0, "sdpo": 0.1}, seed=3)


def test_the_threshold_is_the_percentile_of_plain_passes_and_decides() -> None:
    made = collator(TEXTS)
    rows = rendered_traces(house_traces(6), made)
    run = engine(HintGate(calibrate=20, percentile=0.6))
    calibration = RowCalibration(run.calibrations["sdpo"], rows, made, size=3)
    calibration.measure(lambda batch: run.changes(batch, site_numbers(batch)))
    threshold = run.calibrations["sdpo"].threshold
    assert threshold is not None

    model = laboratory_model().eval()

    def mean_logprob(ids: list[int], start: int, stop: int) -> float:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return float(torch.stack([logprobs[place - 1, ids[place]] for place in range(start, stop)]).mean())

    def change(one: HintedTurn) -> float:
        ids, hint = list(rows[one.row].ids), list(one.site.hint_ids)
        ((start, stop),) = one.site.spans
        hinted = [*ids[: one.site.header], *hint, *ids[one.site.header :]]
        return abs(mean_logprob(ids, start, stop) - mean_logprob(hinted, start + len(hint), stop + len(hint)))

    # Each of the six turns has four foreign hints: the text that two share counts once.
    foreign = calibration._drawn
    assert len(foreign) == 20
    assert all(one.site.hint != rows[one.row].sites[0].hint for one in foreign)
    changes = sorted(change(one) for one in foreign)
    place = 0.6 * 19
    low = int(place)
    by_hand = changes[low] + (place - low) * (changes[low + 1] - changes[low])
    assert threshold == pytest.approx(by_hand, rel=1e-3)

    batch = made.collate(rows)
    numbers = site_numbers(batch)
    kept = run.judge(batch, numbers, channel="sdpo").kept_P
    own = [change(HintedTurn("", number, row.sites[0])) for number, row in enumerate(rows)]
    assert [bool(kept[numbers == number].all()) for number in range(6)] == [one > by_hand for one in own]
    metrics = run.end_step(1)
    assert metrics["channels/sdpo/gate_threshold"] == threshold
    assert 0 < metrics["channels/sdpo/like_foreign"] == sum(one <= by_hand for one in own) < 6

    calibration.measure(lambda batch: [])  # once is enough
    resumed = engine(HintGate(calibrate=20, percentile=0.6))
    resumed.load(run.tensors(), json.loads(json.dumps(run.numbers())))
    assert resumed.calibrations["sdpo"].threshold == threshold


def test_traces_without_foreign_hints_are_refused() -> None:
    for count, texts, problem in ((1, TEXTS, "got 1 of 1"), (2, TEXTS, "got 1 of 2")):
        made = collator(texts)
        rows = rendered_traces(house_traces(count), made)
        with pytest.raises(ValueError, match=f"different hints of at least two traces, {problem}: give more traces"):
            RowCalibration(GateCalibration(80, 0.95, "7"), rows, made, size=1)
