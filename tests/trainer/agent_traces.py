"""Made-up traces in the collator's form, and how each template writes what the assistant said in them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from composer_replication._tiny import tiny_tokenizer
from composer_replication.pretrained import smollm2_file
from composer_replication.traces import TraceExample

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read_file", "run_python")
]
# What would stand before an assistant turn behind a hint: the hint's message and the turn's header.
HINTED = {
    "chatml": "<|im_start|>{role}\n{hint}<|im_end|>\n<|im_start|>assistant\n",
    "llama": (
        "<|start_header_id|>{role}<|end_header_id|>\n\n{hint}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
}
NAMES = ("qwen2_5", "llama3_1", "smollm2")


@lru_cache
def tokenizer_of(name: str) -> Any:
    """A tiny tokenizer with a real template, or SmolLM2's real one with Qwen2.5's ChatML, as its own has no tools."""
    if name != "smollm2":
        return tiny_tokenizer(name)
    from transformers import AutoTokenizer

    file = smollm2_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.chat_template = tiny_tokenizer("qwen2_5").chat_template
    return tokenizer


def dialect(name: str) -> str:
    return "llama" if name == "llama3_1" else "chatml"


def call(identity: str, tool: str = "read_file", **arguments: Any) -> dict[str, Any]:
    return {"id": identity, "name": tool, "arguments": arguments}


def said(name: str, turn: dict[str, Any]) -> str:
    """An assistant turn as the template writes it, from where generation starts to the end of the turn."""
    calls = turn.get("tool_calls", [])
    content = turn["content"]
    if dialect(name) == "llama":
        if not calls:
            return f"{content.strip()}<|eot_id|>"
        (only,) = calls
        return f'{{"name": "{only["name"]}", "parameters": {_json(only)}}}<|eot_id|>'
    shown = [f'<tool_call>\n{{"name": "{one["name"]}", "arguments": {_json(one)}}}\n</tool_call>' for one in calls]
    return "\n".join([*([content] if content or not calls else []), *shown]) + "<|im_end|>"


def readable(tokenizer: Any, text: str) -> str:
    """A text as its tokens can say it: SmolLM2's vocabulary lacks some bytes."""
    shown: str = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    return shown


def _json(one: dict[str, Any]) -> str:
    return json.dumps(one["arguments"], ensure_ascii=False)


TEXTS = st.text(
    st.one_of(st.sampled_from("\n \t\"'{}<é🙂漢 ab1"), st.characters(exclude_categories=("Cs",))), max_size=12
)


@st.composite
def examples(draw: st.DrawFn, *, most_calls: int) -> TraceExample:
    """A conversation with tools: several rounds, some with failing calls, some texts empty."""
    turns: list[dict[str, Any]] = []
    if draw(st.booleans()):
        turns.append({"role": "system", "content": draw(TEXTS)})
    turns.append({"role": "user", "content": draw(TEXTS)})
    for number in range(draw(st.integers(1, 5))):
        turn: dict[str, Any] = {"role": "assistant", "content": draw(TEXTS), "thinking": "Never to be seen."}
        turns.append(turn)
        calls = [
            call(f"c{number}_{k}", draw(st.sampled_from(("read_file", "ghost"))), path=draw(TEXTS), n=k)
            for k in range(draw(st.integers(0, most_calls)))
        ]
        if calls:
            turn["tool_calls"] = calls
            turns += [{"role": "tool", "tool_call_id": one["id"], "content": draw(TEXTS)} for one in calls]
            if draw(st.booleans()):
                turn["tool_error"] = "tool_not_found"
                turn["error_meta"] = {"number": number}
        if draw(st.booleans()):
            turns.append({"role": "user", "content": draw(TEXTS)})
    made: TraceExample = {"trace_id": "made-up", "turns": turns, "final_reward": 1.0}  # type: ignore[typeddict-item]
    if draw(st.booleans()):
        made["tools"] = TOOLS
    return made
