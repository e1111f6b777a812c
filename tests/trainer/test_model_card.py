"""The model card: what it says of hub models, folders and models without a name, and that both trainers leave one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard as HubCard
from trainer.live_run import trainer as live_trainer
from transformers import TrainingArguments

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.traces import TraceExample
from composer_replication.trainer.model_card import ModelCard, name_base_absolutely
from composer_replication.trainer.trace_trainer import TraceTrainer

CARD: dict[str, Any] = {
    "title": "run, step 2",
    "place": "checkpoint-2",
    "architecture": "Qwen2ForCausalLM",
    "steps": "2 of 4 steps",
}


def test_a_base_on_the_hub_is_named_with_its_revision() -> None:
    text = str(ModelCard(**CARD, base="org/name", revision="v1", is_adapter=True, metadata={"tags": "mine"}))
    assert "Base model: [org/name](https://huggingface.co/org/name) at revision `v1` (Qwen2ForCausalLM)." in text
    assert "Elsewhere" not in text
    data = HubCard(text).data
    assert (data.base_model, data.library_name, data.tags) == ("org/name", "peft", ["composer-replication", "mine"])


def test_a_local_base_is_named_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "my base").mkdir()
    text = str(ModelCard(**CARD, base=str(tmp_path / "my base"), is_adapter=True))
    assert "Base model: `my base`, a local checkpoint" in text
    assert str(tmp_path) not in text
    assert "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), place)" in text
    assert HubCard(text).data.base_model is None


def test_what_is_not_known_is_left_out() -> None:
    text = str(ModelCard(**CARD, base="", sections={"Data": {"rows": 3, "rewards": None}}))
    assert "a Qwen2ForCausalLM that was not loaded from a checkpoint" in text
    assert text.endswith("## Data\n\n- rows: 3\n")
    assert "None" not in text


def test_an_adapter_names_a_local_base_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base").mkdir()
    names = ["base", "org/name", None]
    configs = {str(name): SimpleNamespace(base_model_name_or_path=name) for name in names}
    name_base_absolutely(SimpleNamespace(peft_config=configs))
    assert [one.base_model_name_or_path for one in configs.values()] == [str(tmp_path / "base"), "org/name", None]
    name_base_absolutely(torch.nn.Linear(1, 1))


def test_trainers_that_no_configuration_made_leave_a_card(tmp_path: Path) -> None:
    turns: Any = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]
    arguments = TrainingArguments(str(tmp_path / "logs"), max_steps=1, use_cpu=True, report_to=[])
    model = tiny_model("qwen2", vocab_size=640, seed=1)
    optimizers = (torch.optim.SGD(model.parameters(), lr=0.5), None)
    from_logs = TraceTrainer(
        model, arguments, [TraceExample(turns=turns)], tiny_tokenizer("qwen2_5"), optimizers=optimizers
    )
    # Nothing is generated, so the model need not know how to call tools.
    live = live_trainer(tmp_path / "live", model=tiny_model("qwen2", vocab_size=1024, seed=1), replay_dataset=None)
    for one, rows, channels in ((from_logs, "1", ("lm", "sdpo", "replay")), (live, "16", ("grpo", "sdpo", "replay"))):
        one.save_model(str(tmp_path / "saved"))
        one.create_model_card(tags=["mine"])
        card, of_run = (
            (folder / "README.md").read_text(encoding="utf-8")
            for folder in (tmp_path / "saved", Path(one.args.output_dir))
        )
        assert "None" not in card + of_run
        assert ("- optimizer: SGD\n- learning_rate: 0.5\n" in card) == (one is from_logs)
        assert f"- training rows: {rows}\n" in card
        assert 'place = "saved"' in card
        assert all(f"- {channel}: " in card for channel in channels)
        assert 'place = "checkpoint-0"' in of_run
        assert "mine" in HubCard(of_run).data.tags
