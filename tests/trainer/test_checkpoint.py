from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from trainer.test_trace_trainer import trace_trainer
from transformers import PreTrainedTokenizerFast

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.causal_lm import run_causal_lm
from composer_replication.channels.hint_distillation import HintGate
from composer_replication.trainer.channel_engine import site_numbers
from composer_replication.trainer.checkpoint import begin_checkpoint, last_complete_checkpoint, load_state, save_state


def test_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(4, 2).T, "c": torch.tensor(3)}
    save_state(tmp_path / "checkpoint-1", tensors, {"t": 0.1, "rows": [[{"x": 1}], []]})
    loaded, numbers = load_state(tmp_path / "checkpoint-1")
    assert numbers == {"t": 0.1, "rows": [[{"x": 1}], []]}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_half_written_checkpoints_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert last_complete_checkpoint(tmp_path / "missing") is None
    for step in (2, 10, 9, 11):
        save_state(tmp_path / f"checkpoint-{step}", {}, {})
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text('{"global_step": 1}', encoding="utf-8")
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-11"
    (tmp_path / "checkpoint-11" / "trainer_state.json").write_text('{"global_st', encoding="utf-8")
    (tmp_path / "checkpoint-10" / "channels-0.json").unlink()
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-9"
    assert "checkpoint-10 was not saved to its end" in caplog.text
    assert last_complete_checkpoint(tmp_path, processes=2) is None


def test_a_checkpoint_that_is_written_again_is_incomplete_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-3"
    begin_checkpoint(folder)  # nothing there yet
    save_state(folder, {}, {})
    (folder / "trainer_state.json").write_text("{}", encoding="utf-8")
    begin_checkpoint(folder)
    assert last_complete_checkpoint(tmp_path) is None


def test_what_cannot_be_trusted_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    with pytest.raises(ValueError, match=r"channels-0\.json"):
        load_state(folder)
    save_state(folder, {"a": torch.zeros(2)}, {})
    tensor_file = folder / "channels-0.safetensors"
    damaged = bytearray(tensor_file.read_bytes())
    damaged[-1] ^= 1
    tensor_file.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        load_state(folder)
    (folder / "channels-0.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(folder)


def test_a_checkpoint_of_an_earlier_version_is_resumed_with_the_same_numbers(tmp_path: Path) -> None:
    """`fixtures/checkpoint-2` was written after step 2 of a run with a model of 8 hidden units."""
    fixtures = Path(__file__).with_name("fixtures")
    checkpoint = fixtures / "checkpoint-2"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(checkpoint / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = tiny_tokenizer("qwen2_5").chat_template
    run = trace_trainer(
        tmp_path,
        model=tiny_model("qwen2", vocab_size=len(tokenizer), hidden_size=8, seed=1),
        processing_class=tokenizer,
        train_dataset=json.loads((fixtures / "traces-of-checkpoint-2.json").read_text(encoding="utf-8")),
        sdpo_wrapper="taid",
        hint_gate=HintGate(min_gap=0.0),
        args={"max_steps": 4},
    )
    run._load_optimizer_and_scheduler(str(checkpoint))
    run.channels.begin(4)
    assert run.channels.taid_t == 0.7
    assert run.channels.pairs is not None
    assert run.channels.pairs.state_dict()["position"] == 2
    batch = run.collator.collate(run.train_dataset[:2])
    run.model.eval()
    judged = run.channels.judge(batch, site_numbers(batch), channel="sdpo")
    student = run_causal_lm(run.model, batch["input_ids"], batch["attention_mask"])
    run.channels.hint_loss(student, batch, judged, token_weight=0.01, channel="sdpo")
    run.channels.replay_loss(run.model, run.channels.pairs.next_batch(2, torch.device("cpu")), share=1.0)
    metrics = run.channels.end_step(3)
    expected = {
        "sdpo/loss": 3.169537305831909,
        "sdpo/active_tokens": 48,
        "sdpo/gap": 0.007355600595474243,
        "sdpo/signed_gap": -0.001588891027495265,
        "sdpo/taid_t": 0.85,
        "replay/loss": 0.6931471824645996,
        "replay/active_tokens": 96,
    }
    assert {name: metrics[f"channels/{name}"] for name in expected} == pytest.approx(expected, rel=1e-4)
