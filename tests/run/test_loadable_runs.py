"""What a run leaves is loaded by the standard calls, from any working directory, and says what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from run.training_material import logs_config, rollout_config
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from composer_replication.config import parse_config
from composer_replication.pretrained import smollm2_file
from composer_replication.run.launch import TrainingRun
from composer_replication.run.model_loading import load_model, lora_config
from composer_replication.run.sections import LoraSection, ModelSection
from composer_replication.teacher_replay.serving import HuggingFaceTeacher


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


def _trained(given: dict[str, Any], **model: Any) -> TrainingRun:
    given["model"] |= model
    run = TrainingRun(parse_config(given))
    run.run()
    return run


def _same(one: Any, other: Any) -> bool:
    """Whether two models have the same weights, those of the base and of the adapters."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def _card(folder: Path) -> str:
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "None" not in card
    assert "More Information Needed" not in card
    assert str(folder.parents[1]) not in card, "a card shows no paths"
    return card


def test_adapters_on_a_base_that_was_named_relatively(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = _trained(logs_config(tmp_path, steps=1), name="model", lora={"r": 4})
    monkeypatch.chdir(elsewhere)
    folder = tmp_path / "run" / "checkpoint-1"
    loaded = AutoPeftModelForCausalLM.from_pretrained(folder)
    assert _same(loaded, run.trainer.model)
    assert AutoTokenizer.from_pretrained(folder).chat_template == run.trainer.processing_class.chat_template
    assert _same(HuggingFaceTeacher.load(str(folder))._model, run.trainer.model)
    card = _card(folder)
    assert "Base model: `model`, a local checkpoint (Qwen2ForCausalLM)." in card
    assert "AutoPeftModelForCausalLM.from_pretrained(place)" in card
    assert "- traces: `traces`: 2 traces, 6 assistant turns, 2 error turns" in card
    assert "- pairs: `pairs.jsonl`: 3 pairs" in card
    assert "- lm: weight 1\n- sdpo: weight 0.1, teacher ema, " in card
    assert "- replay: weight 0.05, dpo with beta 0.1, 3 pairs" in card
    assert "- learning_rate: 0.001\n" in card
    assert "- r: 4\n" in card
    assert "checkpoint-1" in _card(tmp_path / "run")


def test_all_weights(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _trained(logs_config(tmp_path, steps=1))
    monkeypatch.chdir(elsewhere)
    folder = tmp_path / "run" / "checkpoint-1"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert _same(loaded, run.trainer.model)
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert "model = AutoModelForCausalLM.from_pretrained(place)" in _card(folder)


def test_adapters_of_rollouts(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = _trained(rollout_config(tmp_path, steps=1), name="model", lora={"r": 4})
    monkeypatch.chdir(elsewhere)
    folder = tmp_path / "run" / "checkpoint-1"
    loaded = AutoPeftModelForCausalLM.from_pretrained(folder)
    assert _same(loaded, run.trainer.model)
    card = _card(folder)
    assert "- grpo: weight 1\n" in card
    assert "- environment: `doors.py:Doors`\n- rewards: `doors.py:length_reward` × 0.5\n" in card
    assert "- num_generations: 2\n" in card
    assert "checkpoint-1" in _card(tmp_path / "run")


def test_adapters_on_the_bundled_model(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import get_peft_model

    settings = ModelSection(name="smollm2", lora=LoraSection(r=1, target_modules=("q_proj",)))
    model = get_peft_model(load_model(settings), lora_config(settings))
    model.save_pretrained(tmp_path / "adapter")
    base = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert not Path(base).is_relative_to(smollm2_file().parent)
    monkeypatch.chdir(elsewhere)
    assert AutoConfig.from_pretrained(base).vocab_size == 49_152
    assert len(AutoTokenizer.from_pretrained(base)) == 49_152
    assert isinstance(AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter"), PeftModel)
