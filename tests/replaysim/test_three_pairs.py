"""The three pairs lie well within the bounds of the default recipe, so that it has no reason to touch them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from composer_replication.traces import parse_action, render_action

FIXTURE = Path(__file__).parent / "fixtures" / "three_pairs.jsonl"


def the_pairs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FIXTURE.read_text(encoding="utf-8").splitlines()]


def test_the_three_states_are_there_with_their_teachers() -> None:
    pairs = the_pairs()
    assert [pair["state_id"] for pair in pairs] == ["state-000", "state-001", "state-002"]
    for pair in pairs:
        assert pair["n_teachers_agreeing"] == len(pair["teachers"]) >= 2
        assert pair["state_messages"][-1]["role"] == "tool"


def test_actions_are_as_render_action_writes_them() -> None:
    for pair in the_pairs():
        assert pair["chosen"] != pair["rejected"]
        for text in (pair["chosen"], pair["rejected"]):
            assert parse_action(text).tool_calls
            assert render_action(parse_action(text)) == text


def test_texts_are_of_ordinary_length_and_characters() -> None:
    for pair in the_pairs():
        for text in (pair["chosen"], pair["rejected"]):
            assert 8 <= len(text) <= 32_000
            assert 2 <= len(text.split()) <= 4096
            assert len(re.findall(r"[^a-zA-Z]", text)) / len(text) <= 0.5


def test_no_chosen_text_stands_twice() -> None:
    letters = {re.sub(r"[^a-z]", "", pair["chosen"].lower()) for pair in the_pairs()}
    assert len(letters) == 3
