"""The example that goes from a session file to a gradient, run as a reader would run it."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "log_to_gradient.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("log_to_gradient", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["log_to_gradient"] = module
    spec.loader.exec_module(module)
    return module


def test_a_session_file_becomes_a_step_with_three_live_channels(example: ModuleType, tmp_path: Path) -> None:
    step = example.take_step(example.write_session(tmp_path / "session.jsonl"))
    assert all(tokens > 0 for tokens in step.loss.active_tokens.values()), step.loss.active_tokens
    for loss in (step.loss.lm_ce, step.loss.sdpo_jsd, step.loss.trace_replay_dpo):
        assert math.isfinite(float(loss.detach()))
        assert float(loss.detach()) > 0
    assert float(step.loss.trace_replay_dpo.detach()) == pytest.approx(math.log(2), abs=1e-5)  # it is its own reference
    assert math.isfinite(step.gradient_norm)
    assert step.gradient_norm > 0
    assert step.weight_change > 0
    assert (step.stats.rows, step.stats.sites, step.stats.pairs) == (1, 1, 1)


def test_the_hint_falls_on_the_edit_that_failed(example: ModuleType, tmp_path: Path) -> None:
    step = example.take_step(example.write_session(tmp_path / "session.jsonl"))
    (turn,) = step.hinted_turns
    assert turn.startswith('<tool_call>\n{"name": "Edit"')
    assert "return net * tax" in turn
    assert turn.endswith("<|im_end|>")
    (context,) = step.hinted_contexts
    assert context.endswith(turn)
    hint = context.removesuffix(turn).rsplit("<|im_start|>system\n", 1)[1]
    assert hint.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert hint.startswith("Read `/shop/invoice.py` and copy the text to replace exactly as it stands there")
    assert "not found in file" not in context  # the failure itself is still to come


def test_the_command_prints_a_table(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    printed = capsys.readouterr().out
    assert "hint self-distillation" in printed
    assert "copy the text to replace exactly" in printed
