"""Commands that do the same, and commands that look alike and do not: the rows of `command_pairs.jsonl`."""

from __future__ import annotations

import pytest
from teacher_replay.actions import bash, command_pairs, on_texts

from composer_replication.teacher_replay.agreement.action import ActionComparer

COMPARER = on_texts(ActionComparer())


@pytest.mark.parametrize(("first", "second", "same"), command_pairs())
def test_a_pair_of_commands(first: str, second: str, same: bool) -> None:
    assert COMPARER(bash(first), bash(second)).same is same
    assert COMPARER(bash(second), bash(first)).same is same
