"""Pairs as TRL's preference data, rendered by real chat templates and read by TRL itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, load_dataset
from trl import DPOConfig, DPOTrainer
from trl.data_utils import apply_chat_template, is_conversational

from composer_replication._tiny import tiny_model
from composer_replication.teacher_replay.pair_files import preference_row, save_preference
from composer_replication.teacher_replay.records import DPOPair, Pair
from composer_replication.traces import Source, ToolCall, Trace, Turn

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "Read",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {"file_path": {"type": "string"}},
                "required": ["file_path"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "Bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
    },
]
CHOSEN = 'Let me look.\n[TOOL_USE] name=Read input={"file_path": "a.py"}'


def history() -> Any:
    """What a student saw before its second turn: a prompt, a call and its result, as a view of the trace."""
    turns = [
        Turn("user", "fix it"),
        Turn("assistant", "", tool_calls=[ToolCall("c1", "Bash", {"command": "ls"})]),
        Turn("tool", "a.py", tool_call_id="c1"),
        Turn("assistant", "done"),
    ]
    return list(Trace("t", turns, Source("f", "made_up")).states())[1]["messages"]


def pair(chosen: str = CHOSEN, rejected: str = "It works.", **fields: Any) -> DPOPair:
    return {
        "state_id": "s",
        "state_messages": history(),
        "chosen": chosen,
        "rejected": rejected,
        "n_teachers_agreeing": 2,
        **fields,
    }


def row_of(pair: DPOPair) -> dict[str, Any]:
    return preference_row(Pair.of(pair))


def rendered(row: dict[str, Any], tokenizer: Any) -> dict[str, str]:
    messages = {key: row[key] for key in ("prompt", "chosen", "rejected")}
    return apply_chat_template(messages, tokenizer, tools=row.get("tools"))


def test_an_action_is_a_message_with_its_calls() -> None:
    row = row_of(pair(chosen=f"[THINKING]\nhm\n[/THINKING]\n{CHOSEN}"))
    (message,) = row["chosen"]
    assert message == {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "Read", "arguments": {"file_path": "a.py"}}}
        ],
    }
    assert row["rejected"] == [{"role": "assistant", "content": "It works."}]


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    (message,) = row_of(pair('[TOOL_USE] name=Read input={"file_path": "a'))["chosen"]
    (call,) = message["tool_calls"]
    assert call["function"]["arguments"] == '{"file_path": "a'


def test_a_row_does_not_change_the_pair() -> None:
    made = pair(tools=TOOLS)
    row = row_of(made)
    assert row["prompt"][1]["tool_calls"][0]["function"]["arguments"] == {"command": "ls"}
    assert made["state_messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"command": "ls"}'
    assert row["tools"] == TOOLS
    assert "tools" not in row_of(pair(tools=[]))
    assert is_conversational(row)


def test_messages_without_calls_have_no_key_for_them() -> None:
    # Llama's template takes a message for a call if the key is there.
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "ok", "tool_calls": []}]
    row = row_of({**pair(), "state_messages": messages})
    assert all("tool_calls" not in message for message in row["prompt"])


def test_templates_render_calls_in_their_own_form(tokenizer: Any) -> None:
    forms = {
        "<|im_start|>": '<tool_call>\n{"name": "Read", "arguments": {"file_path": "a.py"}}\n</tool_call>',
        "<|start_header_id|>": '{"name": "Read", "parameters": {"file_path": "a.py"}}',
    }
    for actions, kept, other in ((pair(), "chosen", "rejected"), (pair("It works.", CHOSEN), "rejected", "chosen")):
        text = rendered(row_of({**actions, "tools": TOOLS}), tokenizer)
        (form,) = [form for mark, form in forms.items() if mark in text["prompt"]]
        assert form in text[kept]
        assert "It works." in text[other]
        assert "[TOOL_USE]" not in text["prompt"] + text[kept]
        # The student's earlier call, with its arguments as an object too, and the tools.
        assert '{"command": "ls"}' in text["prompt"]
        assert "Read a file." in text["prompt"]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_file_gives_back_the_rows_exactly(ending: str, tmp_path: Path, tokenizer: Any) -> None:
    # Rows with and without calls, arguments and tools of different shapes: nothing may leak from one into the other.
    pairs = [
        pair(tools=TOOLS),
        pair("No calls here.", '[TOOL_USE] name=Bash input={"command": "ls", "timeout": null}'),
        pair('[TOOL_USE] name=Edit input={"edits": [{"old": "a", "new": "é"}], "path": {"deep": [1, 2.5]}}', "x"),
    ]
    path = tmp_path / f"pairs.{ending}"
    assert save_preference(pairs, path) == 3
    kind = {"jsonl": "json", "parquet": "parquet"}[ending]
    read = load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    for row, made in zip(read, pairs, strict=True):
        expected = row_of(made)
        assert {key: value for key, value in row.items() if value is not None} == expected
        assert rendered(row, tokenizer) == rendered(expected, tokenizer)


def test_trl_trains_on_the_parquet_file(tmp_path: Path, qwen_tokenizer: Any) -> None:
    path = tmp_path / "pairs.parquet"
    save_preference([pair(tools=TOOLS), pair("It works.", CHOSEN, tools=TOOLS)], path)
    data = Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    options = {"per_device_train_batch_size": 2, "max_steps": 1, "report_to": [], "use_cpu": True, "bf16": False}
    trainer = DPOTrainer(
        model=tiny_model("qwen2", vocab_size=640, seed=1),
        ref_model=tiny_model("qwen2", vocab_size=640, seed=2),
        args=DPOConfig(output_dir=str(tmp_path / "out"), **options),
        train_dataset=data,
        processing_class=qwen_tokenizer,
    )
    chosen = qwen_tokenizer.decode(trainer.train_dataset[0]["chosen_ids"])
    rejected = qwen_tokenizer.decode(trainer.train_dataset[1]["rejected_ids"])
    assert '{"name": "Read", "arguments": {"file_path": "a.py"}}' in chosen
    assert chosen == rejected
    assert "Read a file." in qwen_tokenizer.decode(trainer.train_dataset[0]["prompt_ids"])
    assert trainer.train().training_loss > 0
