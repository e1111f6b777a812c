"""The laboratory model: what was shipped loads anywhere, obeys hints, and has room to learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from composer_replication.envs.house_style import Call, make_tasks
from composer_replication.laboratory import CHECKPOINT, laboratory_model, laboratory_tokenizer
from composer_replication.laboratory.chances import pass_chance
from composer_replication.laboratory.tokenizer import FRAMES
from composer_replication.template_check import check_chat_template


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return laboratory_tokenizer()


def test_it_is_small_and_in_float32() -> None:
    model = laboratory_model()
    assert sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= 8 * 2**20
    assert not list(CHECKPOINT.glob("*.bin")) + list(CHECKPOINT.glob("*.pt"))


def test_it_loads_by_its_path_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(str(CHECKPOINT))
    tokenizer = AutoTokenizer.from_pretrained(str(CHECKPOINT))
    assert len(tokenizer) <= model.config.vocab_size
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id
    first, second = laboratory_model(), laboratory_model()
    with torch.no_grad():
        first.lm_head.weight.zero_()
    assert second.lm_head.weight.abs().sum() > 0


def test_trl_takes_its_template_for_tools_and_reads_its_calls(tokenizer: Any) -> None:
    assert supports_tool_calling(tokenizer)
    assert is_chat_template_prefix_preserving(tokenizer)
    check_chat_template(tokenizer, tools=True, growing=True, hints=True)
    call = Call("erase_file", {"path": 'a "b".md'}).message()
    said = {**call, "content": "I will.", "tool_calls": call["tool_calls"] * 2}
    text = tokenizer.apply_chat_template([{"role": "user", "content": "x"}, said], tokenize=False)
    answer = text.partition("<|im_start|>assistant\n")[2]
    parsed = parse_response(tokenizer, tokenizer(answer)["input_ids"], prefix=[])
    assert parsed["tool_calls"] == said["tool_calls"]
    assert parsed["content"].strip() == "I will."


def test_the_tokenizer_round_trips_any_text_and_has_a_token_for_each_frame(tokenizer: Any) -> None:
    text = "def f(x):\n\treturn 'häßlich 🙂' # 漢字"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    for frame in FRAMES:
        assert len(tokenizer(f"x{frame}y")["input_ids"]) == 3


def test_the_card_says_what_it_is() -> None:
    card = (CHECKPOINT / "README.md").read_text(encoding="utf-8")
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    assert "python -m composer_replication.laboratory.build" in card
    assert f"{config['num_hidden_layers']} layers" in card


@pytest.mark.parametrize("house", [0, 1, 2])
def test_it_obeys_hints_and_has_room_to_learn(tokenizer: Any, house: int) -> None:
    model = laboratory_model()
    tasks = make_tasks("held_out", 16, seed=11, calls=2)
    plain, hinted = (pass_chance(model, tokenizer, tasks, house, hinted=hinted) for hinted in (False, True))
    assert 0.01 < plain < 0.1
    assert hinted > 4 * plain
