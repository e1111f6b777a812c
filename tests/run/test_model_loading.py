"""Models and tokenizers by name, and what is refused before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from run.training_material import model_folder

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.run.model_loading import (
    check_model,
    check_tools,
    empty_model,
    load_model,
    load_tokenizer,
    lora_config,
)
from composer_replication.run.sections import LoraSection, ModelSection


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


def test_a_folder_is_loaded_as_it_was_saved(folder: Path) -> None:
    settings = ModelSection(name=str(folder), dtype="bfloat16", attn_implementation="eager")
    model, tokenizer = load_model(settings), load_tokenizer(settings)
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    saved = tiny_model("qwen2", vocab_size=640, hidden_size=32, seed=1)
    assert torch.equal(model.lm_head.weight, saved.lm_head.weight.bfloat16())
    assert tokenizer.chat_template == tiny_tokenizer("qwen2_5").chat_template
    check_model(model, tokenizer, settings)


def test_an_empty_model_has_the_shapes_and_no_weights(folder: Path) -> None:
    settings = ModelSection(name=str(folder))
    empty, model = empty_model(settings), load_model(settings)
    assert {one.device.type for one in empty.parameters()} == {"meta"}
    assert [one.shape for one in empty.parameters()] == [one.shape for one in model.parameters()]


def test_the_bundled_model_gets_a_template_with_tools() -> None:
    settings = ModelSection(name="smollm2")
    tokenizer, model = load_tokenizer(settings), empty_model(settings)
    check_model(model, tokenizer, settings)
    check_tools(tokenizer, "the test")
    assert sum(one.numel() for one in model.parameters()) == 134_515_008


def test_a_template_without_tools_is_refused_where_they_are_needed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    plain = load_tokenizer(ModelSection(name=str(folder), chat_template=str(tmp_path / "plain.jinja")))
    with pytest.raises(
        ValueError, match=r"model\.chat_template: the template renders no tool calls, and the test needs"
    ):
        check_tools(plain, "the test")


def test_templates(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages[0]['content'] }}", encoding="utf-8")
    mine = load_tokenizer(ModelSection(name=str(folder), chat_template=str(tmp_path / "mine.jinja")))
    assert mine.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    with pytest.raises(
        ValueError, match=r"model\.chat_template: nowhere is neither a file nor a template that trl ships"
    ):
        load_tokenizer(ModelSection(name=str(folder), chat_template="nowhere"))
    named = load_tokenizer(ModelSection(name=str(folder), chat_template="qwen3_training"))
    assert "generation" in named.chat_template
    bare = model_folder(tmp_path / "bare", template=None)
    with pytest.raises(
        ValueError, match=r"model\.chat_template: .* has no chat template of its own; set it to qwen2_5"
    ):
        load_tokenizer(ModelSection(name=str(bare)))
    assert load_tokenizer(ModelSection(name=str(bare), chat_template="qwen2_5")).chat_template
    llama = model_folder(tmp_path / "llama", template="llama3_1")
    with pytest.raises(ValueError, match=r"qwen2_5 uses <\|im_start\|>, not a token of"):
        load_tokenizer(ModelSection(name=str(llama), chat_template="qwen2_5"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "model.name: ./nowhere: there is no such directory"),
        ("/nowhere/at/all", "there is no such directory"),
        ("a/b/c", "there is no such directory"),
        ("EMPTY", "holds no model: there is no config.json in it"),
        ("BROKEN", "cannot be loaded"),
        ("no-such/model", "model.name: no-such/model is not a directory, and its"),
    ],
)
@pytest.mark.parametrize("load", [load_model, load_tokenizer, empty_model])
def test_models_that_are_not_there(name: str, message: str, load: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    name = {"EMPTY": str(tmp_path / "empty"), "BROKEN": str(tmp_path / "broken")}.get(name, name)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        load(ModelSection(name=name))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_another_model(folder: Path, tmp_path: Path) -> None:
    settings = ModelSection(name=str(model_folder(tmp_path, vocab_size=600)))
    model, tokenizer = load_model(settings), load_tokenizer(settings)
    with pytest.raises(ValueError, match=r"has 640 tokens and the model rows for 600: they do not belong together"):
        check_model(model, tokenizer, settings)
    check_model(tiny_model("qwen2", vocab_size=700), tokenizer, settings)  # rows to spare are usual


def test_a_model_without_a_head(folder: Path) -> None:
    settings = ModelSection(name=str(folder))
    with pytest.raises(ValueError, match=r"\(Qwen2Model\) has no output embeddings"):
        check_model(load_model(settings).model, load_tokenizer(settings), settings)


def test_a_model_that_was_saved_without_its_head_is_not_given_a_random_one(folder: Path, tmp_path: Path) -> None:
    settings = ModelSection(name=str(folder))
    load_model(settings).model.save_pretrained(tmp_path / "backbone")
    load_tokenizer(settings).save_pretrained(tmp_path / "backbone")
    backbone = ModelSection(name=str(tmp_path / "backbone"))
    with pytest.raises(ValueError, match=r"lacks \d+ weights of a causal language model, lm_head"):
        load_model(backbone)
    with pytest.raises(ValueError, match="was saved as Qwen2Model, which has no output embeddings"):
        empty_model(backbone)


def test_adapters() -> None:
    given = LoraSection(r=4, alpha=8.0, target_modules=("q_proj", "v_proj"), rslora=True)
    config = lora_config(ModelSection(name="org/model", revision="v2", lora=given))
    assert (config.r, config.lora_alpha, config.use_rslora) == (4, 8.0, True)
    assert set(config.target_modules) == {"q_proj", "v_proj"}
    assert config.revision == "v2"
    assert lora_config(ModelSection(name="org/model", lora=LoraSection())).target_modules == "all-linear"
    assert lora_config(ModelSection(name="org/model")) is None
