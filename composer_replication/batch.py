"""A small real batch for trying losses: two short agent traces, one of them with a tool error.

Training data goes through the collator instead; the rendering is the same.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from composer_replication._arguments import check_choice
from composer_replication.causal_lm import evaluating
from composer_replication.channels.scoring import preference_logprobs
from composer_replication.chat_templates import renders_tool_calls
from composer_replication.rendering import Splice, hint_message, hinted_rows, padded, render_conversation, stacked
from composer_replication.traces import Message, parse_action

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


class SampleTrace(NamedTuple):
    """A short agent trace in which one call goes wrong.

    `messages` are in OpenAI's form, except that the arguments of calls are dicts, as chat templates take them; `tools`
    are the agent's tool definitions. `erring_message` is the index of the message with the wrong call, `hint` what
    would have helped it, `better_action` the message that should have been there.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    erring_message: int
    hint: str
    better_action: Message


def sample_trace(variant: str = "factorial", seed: int = 42) -> SampleTrace:
    """Return the trace that `build_batch` renders for the same variant and seed.

    Raises:
        ValueError: an unknown variant.
    """
    return copy.deepcopy(_sample(variant, random.Random(seed)))  # the caller's own: samples share their parts


def build_batch(
    tokenizer: Any,
    *,
    device: torch.device | str = "cpu",
    seed: int = 42,
    variant: str = "factorial",
    align_sdpo_shapes: bool = False,
    model: torch.nn.Module | None = None,
    pair: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Build a batch that `compose_loss` takes as it is.

    Channels 1 and 2 are live from the tokenizer alone. With `model`, the reference policy, channel 3 is too: its
    reference log-probabilities come from a real pass of that model.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        device: where the tensors go.
        seed: picks the numbers and file names in the traces; the global random state is left alone.
        variant: "factorial" (a tool that does not exist) or "binary_search" (a wrong argument name).
        align_sdpo_shapes: pad the teacher ids to the student's length. The index pairs are right either way.
        model: the reference policy for the preference pair.
        pair: a `DPOPair` of the erring turn to use instead of the sample's own: `chosen` and `rejected` are actions in
            the form of `render_action`. Needs `model`.

    Returns:
        `input_ids`, `attention_mask`, `response_mask`, `ctx_teacher_input_ids`, `ctx_teacher_attention_mask`,
        `sdpo_loss_mask` (on the teacher's ids), `sdpo_student_index`, `sdpo_teacher_index`; with `model` also
        `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask,ref_logprobs}`.

    Raises:
        ValueError: an unknown variant, a tokenizer whose chat template cannot be used, a pair without a model, or one
            that rejects another call than the sample's wrong one.
    """
    numbers = random.Random(seed)
    erring = _sample(variant, numbers)
    clean = _clean_trace(numbers)
    if pair is not None:
        if model is None:
            raise ValueError("pair needs model: the pair's reference log-probabilities come from it")
        erring = erring._replace(better_action=_chosen(pair, erring.messages[erring.erring_message]))
    tools: list[dict[str, Any]] | None = erring.tools
    if not renders_tool_calls(tokenizer):
        tools = None
        erring, clean = erring._replace(messages=_as_text(erring.messages)), _as_text(clean)
        erring = erring._replace(better_action=_as_text([erring.better_action])[0])

    rows = [render_conversation(tokenizer, messages, tools=tools) for messages in (erring.messages, clean)]
    ids = [row.ids for row in rows]
    turn = next(turn for turn in rows[0].turns if turn.message == erring.erring_message)
    before = erring.messages[: erring.erring_message]
    hint_ids, _ = hint_message(tokenizer, before, erring.hint, tools=tools)
    assert turn.header is not None, "rendered turns have headers"
    # A teacher row for each of the student's; that of the clean trace has no hint and carries no pairs.
    end = len(ids[1])
    splices = [Splice(tuple(hint_ids), turn.header, ((turn.start, turn.stop),)), Splice((), end, ((end, end),))]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    batch = padded("", ids, pad)
    batch["response_mask"] = stacked([row.response_mask() for row in rows], 0)
    batch |= hinted_rows(ids, [[splice] for splice in splices], pad_token_id=pad)
    if align_sdpo_shapes:
        # The hint is shorter than what follows the erring turn, so the teacher's rows are never the longer ones.
        missing = batch["input_ids"].shape[1] - batch["ctx_teacher_input_ids"].shape[1]
        for name, filler in (("ctx_teacher_input_ids", pad), ("ctx_teacher_attention_mask", 0)):
            batch[name] = torch.nn.functional.pad(batch[name], (0, missing), value=filler)
    batch["sdpo_loss_mask"] = torch.zeros_like(batch["ctx_teacher_input_ids"])
    batch["sdpo_loss_mask"][tuple(batch["sdpo_teacher_index"].T)] = 1
    if model is not None:
        for side, action in (("chosen", erring.better_action), ("rejected", erring.messages[erring.erring_message])):
            response = render_conversation(tokenizer, [*before, action], tools=tools)
            last = response.turns[-1]
            batch |= padded(f"dpo_{side}_", [response.ids], pad)
            batch[f"dpo_{side}_response_mask"] = torch.zeros(1, len(response.ids), dtype=torch.long)
            batch[f"dpo_{side}_response_mask"][0, last.start : last.stop] = 1
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    if model is not None:
        with torch.no_grad(), evaluating(model):
            chosen, rejected = preference_logprobs(model, batch)[0].chunk(2)
        batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = chosen, rejected
    return batch


def _sample(variant: str, numbers: random.Random) -> SampleTrace:
    check_choice("variant", variant, VARIANTS)
    return _factorial_trace(numbers) if variant == "factorial" else _binary_search_trace(numbers)


def _factorial_trace(numbers: random.Random) -> SampleTrace:
    n = numbers.randint(4, 7)
    path = f"src/factorial_{numbers.randint(0, 99)}.py"
    wrong, right = _call("open_file", path=path), _call("read_file", path=path)
    messages = _conversation(
        f"Read {path} and tell me what factorial({n}) is.",
        (wrong, "Error: unknown tool 'open_file'. Available tools: read_file, run_python."),
        (right, "def factorial(n):\n    return 1 if n < 2 else n * factorial(n - 1)"),
        answer=f"factorial({n}) is {math.factorial(n)}.",
    )
    return SampleTrace(messages, _TOOLS, 2, "Reminder: files are read with the tool read_file(path).", right)


def _binary_search_trace(numbers: random.Random) -> SampleTrace:
    items = sorted(numbers.sample(range(100), 5))
    target = numbers.choice(items)
    code = f"print({items}.index({target}))"
    wrong, right = _call("run_python", script=code), _call("run_python", code=code)
    messages = _conversation(
        f"At which index does a binary search find {target} in {items}?",
        (wrong, "Error: run_python got an unexpected argument 'script'. Signature: run_python(code)."),
        (right, str(items.index(target))),
        answer=f"It finds {target} at index {items.index(target)}.",
    )
    return SampleTrace(messages, _TOOLS, 2, "Reminder: the signature is run_python(code).", right)


def _clean_trace(numbers: random.Random) -> list[Message]:
    a, b = numbers.randint(2, 9), numbers.randint(2, 9)
    call = _call("run_python", code=f"print({a} * {b})")
    return _conversation(f"What is {a} * {b}?", (call, str(a * b)), answer=f"{a} * {b} is {a * b}.")


def _conversation(question: str, *calls: tuple[Message, str], answer: str) -> list[Message]:
    """Return the messages of a question, of calls with their results, and of the answer."""
    exchanged = [message for call, result in calls for message in (call, {"role": "tool", "content": result})]
    asked, answered = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    return [_SYSTEM, asked, *exchanged, answered]


def _chosen(pair: Mapping[str, Any], wrong_call: Message) -> Message:
    """Return the pair's chosen action as a message, after checking that the pair is about this trace and can teach."""
    for side in ("chosen", "rejected"):
        if not isinstance(pair.get(side), str):
            raise ValueError(f"pair must have the text of an action as {side!r}, got {pair.get(side)!r}")
    if _action_message(pair["rejected"]) != wrong_call:
        function = wrong_call["tool_calls"][0]["function"]
        raise ValueError(
            f"pair rejects {pair['rejected']!r}, but the call that goes wrong here is {json.dumps(function)}: take a "
            "pair of the same variant and seed"
        )
    chosen = _action_message(pair["chosen"])
    if chosen == wrong_call:
        raise ValueError(f"pair chooses what it rejects, {pair['chosen']!r}: there is nothing to prefer")
    return chosen


def _action_message(action: str) -> Message:
    """Parse an action in the form of `render_action` into a message like the sample's, with dicts as arguments."""
    turn = parse_action(action)
    for call in turn.tool_calls:
        if call.raw_arguments is not None:
            raise ValueError(
                f"pair calls {call.name} with arguments that are not a JSON object: {call.raw_arguments!r}"
            )
    message: Message = {"role": "assistant", "content": turn.content}
    calls = [_function(call.name, call.arguments) for call in turn.tool_calls]
    return {**message, "tool_calls": calls} if calls else message


def _call(name: str, **arguments: str) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [_function(name, arguments)]}


def _function(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _as_text(messages: Sequence[Message]) -> list[Message]:
    """Rewrite messages for a template without tools: calls as JSON in the text, results as user messages."""
    plain: list[Message] = []
    for message in messages:
        calls = [f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls", ())]
        content = "\n".join([*filter(None, [message["content"]]), *calls])
        plain.append({"role": "user" if message["role"] == "tool" else message["role"], "content": content})
    return plain
