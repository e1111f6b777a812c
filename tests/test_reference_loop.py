from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLE = Path(__file__).parents[1] / "examples" / "reference_loop.py"


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules["reference_loop"] = module
    spec.loader.exec_module(module)
    return module


def test_all_channels_are_live_the_hints_are_taken_in_and_calls_get_better(loop: ModuleType) -> None:
    steps = list(loop.train(18))
    for channel in ("grpo", "sdpo", "replay"):
        assert sum(step.active_tokens[channel] > 0 for step in steps) > 12, channel
    first, last = steps[:6], steps[-6:]
    assert _mean(step.losses["sdpo"] for step in last) < 0.7 * _mean(step.losses["sdpo"] for step in first)
    assert _mean(step.losses["replay"] for step in last) < _mean(step.losses["replay"] for step in first)
    assert _mean(step.pass_rate for step in last) > 0.1 + _mean(step.pass_rate for step in first)


def test_all_channels_are_live(loop: ModuleType) -> None:
    steps = list(loop.train(2))
    for channel in ("grpo", "sdpo", "replay"):
        assert sum(step.active_tokens[channel] for step in steps) > 0, channel
    assert all(0 < step.pass_rate < 1 for step in steps)


def test_channels_without_a_failed_call_are_off(loop: ModuleType) -> None:
    accepted = loop.Rollout({}, [1], [2], 1.0, 0.0, None)
    assert loop.hint_distillation(None, None, [torch.zeros(1, 3)], [accepted]) == (0.0, 0)
    assert loop.preference(None, None, None, [accepted]) == (0.0, 0)


def test_what_is_no_call_earns_nothing_and_gets_no_hint(loop: ModuleType) -> None:
    task = {"prompt": [], "wanted": ["read_file notes.md"]}
    for said in (
        "Done.",
        "<tool_call>\n{broken\n</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "read_file", "arguments": 7}</tool_call>',
        '<tool_call>{"name": "read_file"}</tool_call>',
    ):
        assert loop.judge(task, said) == (0.0, None), said
    right = '<tool_call>{"name": "read_file", "arguments": {"path": "notes.md"}}</tool_call>'
    assert loop.judge(task, right) == (1.0, None)
    reward, hint = loop.judge(task, right.replace("path", "file"))
    assert reward == 0.0
    assert "read_file(path)" in hint
    assert loop.judge(task, right.replace("read_file", "reset"))[1].startswith("There is no tool named `reset` here")


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
