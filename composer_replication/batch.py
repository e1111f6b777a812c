"""A small real batch to look at and to try losses on: two short agent traces, one of them with a tool error.

Not a data path for training: that is the collator's. The rendering is the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jinja2.exceptions import TemplateError

from composer_replication._arguments import check_choice
from composer_replication.causal_lm import evaluating
from composer_replication.channels import preference_logprobs
from composer_replication.rendering import Message, render_conversation, splice_hint

VARIANTS = ("factorial", "binary_search")

_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string"}},
                "required": [argument],
            },
        },
    }
    for name, description, argument in (
        ("read_file", "Read a file of the project.", "path"),
        ("run_python", "Run Python code and return what it prints.", "code"),
    )
]
_SYSTEM = {"role": "system", "content": "You are a coding agent. Use the tools, then answer."}


class _Trace(NamedTuple):
    messages: list[Message]
    erring_message: int
    hint: str
    better_action: Message


def build_batch(
    tokenizer: Any,
    *,
    device: torch.device | str = "cpu",
    seed: int = 42,
    variant: str = "factorial",
    align_sdpo_shapes: bool = False,
    model: torch.nn.Module | None = None,
) -> dict[str, torch.Tensor]:
    """A batch that `compose_loss` takes as it is.

    Channels 1 and 2 are live from the tokenizer alone. With `model`, the reference policy, channel 3 is too: its
    reference log-probabilities come from a real pass of that model.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        device: where the tensors go.
        seed: picks the numbers and file names in the traces; the global random state is left alone.
        variant: "factorial" (a tool that does not exist) or "binary_search" (a wrong argument name).
        align_sdpo_shapes: pad the teacher ids to the student's length. The index pairs are right either way.
        model: the reference policy for the preference pair.

    Returns:
        `input_ids`, `attention_mask`, `response_mask`, `ctx_teacher_input_ids`, `ctx_teacher_attention_mask`,
        `sdpo_loss_mask` (on the teacher's ids), `sdpo_student_index`, `sdpo_teacher_index`; with `model` also
        `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask,ref_logprobs}`.

    Raises:
        ValueError: an unknown variant, or a tokenizer whose chat template cannot be used.
    """
    check_choice("variant", variant, VARIANTS)
    numbers = random.Random(seed)
    erring = _factorial_trace(numbers) if variant == "factorial" else _binary_search_trace(numbers)
    clean = _clean_trace(numbers)
    tools: list[dict[str, Any]] | None = _TOOLS
    if not _renders_tool_calls(tokenizer):
        tools = None
        erring, clean = erring._replace(messages=_as_text(erring.messages)), _as_text(clean)
        erring = erring._replace(better_action=_as_text([erring.better_action])[0])

    rows = [render_conversation(tokenizer, messages, tools=tools) for messages in (erring.messages, clean)]
    turn = next(turn for turn in rows[0].turns if turn.message == erring.erring_message)
    hinted = splice_hint(
        tokenizer,
        erring.messages,
        rows[0],
        turn,
        erring.hint,
        role=_hint_role(tokenizer, erring.messages[: turn.message], tools),
        tools=tools,
    )
    student_width = max(len(row.ids) for row in rows)
    # A row for each of the student's, as the other keys have; the clean trace has no hint and carries no pairs.
    teacher_rows = [hinted.ids, rows[1].ids]
    # The hint is shorter than what follows the erring turn, so the teacher's rows are never the longer ones.
    teacher_width = student_width if align_sdpo_shapes else max(map(len, teacher_rows))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    batch = _padded("", [row.ids for row in rows], student_width, pad)
    batch["response_mask"] = _filled([row.response_mask() for row in rows], student_width, 0)
    batch |= _padded("ctx_teacher_", teacher_rows, teacher_width, pad)
    columns = torch.arange(turn.start, turn.stop)
    batch["sdpo_student_index"] = torch.stack([torch.zeros_like(columns), columns], dim=1)
    batch["sdpo_teacher_index"] = batch["sdpo_student_index"] + torch.tensor([0, hinted.shift])
    batch["sdpo_loss_mask"] = torch.zeros_like(batch["ctx_teacher_input_ids"])
    batch["sdpo_loss_mask"][0, columns + hinted.shift] = 1
    if model is not None:
        for side, action in (("chosen", erring.better_action), ("rejected", erring.messages[turn.message])):
            response = render_conversation(tokenizer, [*erring.messages[: turn.message], action], tools=tools)
            last = response.turns[-1]
            batch |= _padded(f"dpo_{side}_", [response.ids], len(response.ids), pad)
            batch[f"dpo_{side}_response_mask"] = torch.zeros(1, len(response.ids), dtype=torch.long)
            batch[f"dpo_{side}_response_mask"][0, last.start : last.stop] = 1
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    if model is not None:
        with torch.no_grad(), evaluating(model):
            chosen, rejected = preference_logprobs(model, batch)[0].chunk(2)
        batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = chosen, rejected
    return batch


def _factorial_trace(numbers: random.Random) -> _Trace:
    n = numbers.randint(4, 7)
    path = f"src/factorial_{numbers.randint(0, 99)}.py"
    product = 1
    for factor in range(2, n + 1):
        product *= factor
    messages: list[Message] = [
        _SYSTEM,
        {"role": "user", "content": f"Read {path} and tell me what factorial({n}) is."},
        _call("open_file", path=path),
        _result("Error: unknown tool 'open_file'. Available tools: read_file, run_python."),
        _call("read_file", path=path),
        _result("def factorial(n):\n    return 1 if n < 2 else n * factorial(n - 1)"),
        {"role": "assistant", "content": f"factorial({n}) is {product}."},
    ]
    return _Trace(messages, 2, "Reminder: files are read with the tool read_file(path).", messages[4])


def _binary_search_trace(numbers: random.Random) -> _Trace:
    items = sorted(numbers.sample(range(100), 5))
    target = numbers.choice(items)
    code = f"print({items}.index({target}))"
    messages: list[Message] = [
        _SYSTEM,
        {"role": "user", "content": f"At which index does a binary search find {target} in {items}?"},
        _call("run_python", script=code),
        _result("Error: run_python got an unexpected argument 'script'. Signature: run_python(code)."),
        _call("run_python", code=code),
        _result(str(items.index(target))),
        {"role": "assistant", "content": f"It finds {target} at index {items.index(target)}."},
    ]
    return _Trace(messages, 2, "Reminder: the signature is run_python(code).", messages[4])


def _clean_trace(numbers: random.Random) -> list[Message]:
    a, b = numbers.randint(2, 9), numbers.randint(2, 9)
    return [
        _SYSTEM,
        {"role": "user", "content": f"What is {a} * {b}?"},
        _call("run_python", code=f"print({a} * {b})"),
        _result(str(a * b)),
        {"role": "assistant", "content": f"{a} * {b} is {a * b}."},
    ]


def _call(name: str, **arguments: str) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(text: str) -> Message:
    return {"role": "tool", "content": text}


def _renders_tool_calls(tokenizer: Any) -> bool:
    """Whether the chat template shows tool calls; some drop them without a word, others refuse them."""
    probe = [
        _SYSTEM,
        {"role": "user", "content": "?"},
        _call("probe_tool", probe_argument="x"),
        _result("probe_result"),
    ]
    try:
        text = tokenizer.apply_chat_template(probe, tools=_TOOLS, tokenize=False)
    except TemplateError:
        return False
    return all(part in text for part in ("probe_tool", "probe_argument", "probe_result"))


def _as_text(messages: Sequence[Message]) -> list[Message]:
    """The same messages for a template without tools: calls as JSON in the text, results as user messages."""
    plain: list[Message] = []
    for message in messages:
        if message.get("tool_calls"):
            function = message["tool_calls"][0]["function"]
            plain.append({"role": "assistant", "content": f"<tool_call>{json.dumps(function)}</tool_call>"})
        elif message["role"] == "tool":
            plain.append({"role": "user", "content": message["content"]})
        else:
            plain.append(message)
    return plain


def _hint_role(tokenizer: Any, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> str:
    """ "system", or "user" where the template refuses a system message in mid-conversation."""
    try:
        tokenizer.apply_chat_template([*messages, {"role": "system", "content": "?"}], tools=tools, tokenize=False)
    except TemplateError:
        return "user"
    return "system"


def _padded(prefix: str, rows: Sequence[Sequence[int]], width: int, pad: int) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}input_ids": _filled(rows, width, pad),
        f"{prefix}attention_mask": _filled([[1] * len(row) for row in rows], width, 0),
    }


def _filled(rows: Sequence[Sequence[int]], width: int, filler: int) -> torch.Tensor:
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
