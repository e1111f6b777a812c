"""What each chat template that trl ships can do for traces, pairs and rollouts: exact, or refused with a reason.

`python tests/template_matrix.py` writes the table in docs/templates.md; `tests/test_templates.py` checks it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trl import GRPOTrainer
from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving

from composer_replication._tiny import tiny_tokenizer
from composer_replication.chat_templates import (
    END_OF_TURN,
    TemplatedTokenizer,
    with_result_names,
    without_text_beside_calls,
)
from composer_replication.rendering import render_response
from composer_replication.template_check import check_chat_template, keeps_text_beside_calls
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.rollout_hints import find_hint_sites
from composer_replication.trainer.rollouts import Rollout

_ADVICE = "; trl's template "
USES = ("traces", "traces, thinking kept", "pairs", "rollouts")
EXACT, EXACT_FOR_ONE_TASK = "exact", "exact for traces of one task"
PAGE = Path(__file__).parents[1] / "docs" / "templates.md"
FOLDER = Path(next(iter(find_spec("trl").submodule_search_locations or ()))) / "chat_templates"  # type: ignore[union-attr]
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

HINT = "Reminder: list the files first."
BESIDE = "I look there."
TASK, ANSWER, AGAIN, DONE = "Fix the bug in main.", "It was a typo.", "Now the tests.", "They pass."
PARAMETER = {"type": "string", "description": "Where it is."}
READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": PARAMETER}, "required": ["path"]},
    },
}
_MARKS = re.compile(r"<[|｜][^|｜<>\s]{1,40}[|｜]>|<[|a-z_/]{2,30}\|?>|<\|?[\"a-z_]+\|>|\[/?[A-Z_]{3,20}\]")


_plain_tokenizer = lru_cache(tiny_tokenizer)


def template_tokenizer(name: str) -> Any:
    """A byte-level tokenizer that knows the marks of a template of trl's as tokens of their own."""
    tokenizer = copy.deepcopy(_plain_tokenizer())
    text = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    marks = sorted({mark for mark in _MARKS.findall(text) if "'" not in mark})
    tokenizer.add_tokens([*marks, "<bos>"], special_tokens=True)
    tokenizer.bos_token = "<bos>"
    ends = [mark for mark in END_OF_TURN if mark in text and mark not in ("<|user|>", "<|endoftext|>")]
    tokenizer.eos_token = ends[0] if ends else "<|endoftext|>"
    tokenizer.chat_template = text
    return tokenizer


def called(path: str, number: int) -> dict[str, Any]:
    call = {"id": f"abcdefgh{number}", "name": "read_file", "arguments": {"path": path}}
    return {"role": "assistant", "content": "", "thinking": f"I think of {path}.", "tool_calls": [call]}


def example(tasks: int = 2) -> dict[str, Any]:
    """A trace in which the second call fails: two calls, an answer; another task with its answer."""
    failing = {**called("b.py", 2), "content": BESIDE, "tool_error": "file_not_found", "error_meta": {}}
    return {
        "trace_id": "t",
        "tools": [READ],
        "turns": [
            {"role": "user", "content": TASK},
            called("a.py", 1),
            {"role": "tool", "tool_call_id": "abcdefgh1", "content": "print(1)"},
            failing,
            {"role": "tool", "tool_call_id": "abcdefgh2", "content": "no such file"},
            {"role": "assistant", "content": ANSWER, "thinking": "I think that I know."},
            {"role": "user", "content": AGAIN},
            {"role": "assistant", "content": DONE, "thinking": "I think that we are done."},
        ][: 6 if tasks == 1 else None],
    }


def verdict(name: str, use: str) -> str:
    """`EXACT`, or the reason for which the template is refused.

    Raises:
        AssertionError: the template is taken, and a mask or a site is wrong.
    """
    tokenizer = template_tokenizer(name)
    try:
        if use == "pairs":
            return _pairs(tokenizer)
        if use == "rollouts":
            return _rollouts(tokenizer)
        try:
            return _traces(tokenizer, example(), keeps_thinking=use != "traces")
        except ValueError as error:
            if _ADVICE in str(error):
                raise
            _traces(tokenizer, example(tasks=1), keeps_thinking=use != "traces")
            return EXACT_FOR_ONE_TASK
    except ValueError as error:
        reason, _, advice = str(error).partition(_ADVICE)
        reason = reason.split("; trl has")[0].removeprefix("trace 't': ").removeprefix("the chat template ")
        return f"{reason}; use {advice.split()[0]}" if advice else reason.split(": leave the thinking")[0]


def _traces(tokenizer: Any, given: dict[str, Any], *, keeps_thinking: bool) -> str:
    config = CollatorConfig(hint_generator=lambda kind, meta: HINT, strip_thinking=not keeps_thinking)
    collator = ComposerDataCollator(tokenizer, config)
    (row,) = collator.rows(given)  # type: ignore[arg-type]
    conversation = _messages(given["turns"], keeps_thinking)
    if not keeps_text_beside_calls(tokenizer):
        conversation = without_text_beside_calls(conversation)
    whole = tokenizer.apply_chat_template(conversation, tools=[READ], tokenize=False)
    shown = tokenizer.decode(row.ids)
    assert shown[: len(whole)] == whole, "the row is the template's own rendering"
    assert shown[len(whole) :] in ("", *END_OF_TURN), "nothing but an end of turn follows it"
    segments = said_in(tokenizer, row.ids, row.response_mask)
    spoken = [place for place, message in enumerate(conversation) if message["role"] == "assistant"]
    for place, segment in zip(spoken, segments, strict=True):
        _check_turn(tokenizer, conversation[: place + 1], segment)
    (site,) = row.sites
    (span,) = site.spans
    assert tokenizer.decode(row.ids[slice(*span)]) == segments[1], "the loss is on the turn that failed"
    role = collator.stats.hint_role_used.most_common(1)[0][0]
    _check_hint(tokenizer, site.hinted(row.ids), conversation[:3], role, segments[1])
    return EXACT


def _pairs(tokenizer: Any) -> str:
    turns = without_text_beside_calls(_messages(example()["turns"], keeps_thinking=False))
    check_chat_template(tokenizer, tools=True, responses=True)
    for prompt, sides in ((turns[:1], (turns[1], turns[5])), (turns[:5], (turns[5], turns[3])), (turns[:7], turns[7:])):
        for side in sides:
            prompt_ids, response_ids = render_response(tokenizer, prompt, side, tools=[READ])
            whole = tokenizer.apply_chat_template([*prompt, side], tools=[READ], tokenize=False)
            shown = tokenizer.decode([*prompt_ids, *response_ids])
            assert shown.removesuffix(tokenizer.decode(response_ids[-1:])) in whole, "the template's own rendering"
            _check_turn(tokenizer, [*prompt, side], tokenizer.decode(response_ids))
    return EXACT


def _rollouts(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    check_chat_template(tokenizer, tools=True, hints=True)
    if not is_chat_template_prefix_preserving(tokenizer):
        template = get_training_chat_template(tokenizer)
    bound = TemplatedTokenizer(tokenizer, template)
    check_chat_template(bound, tools=True, hints=True)
    tokenizer.chat_template = template
    try:
        rollout = _rolled_out(tokenizer, thinks=True)
    except ValueError:  # its prompts say that there is no thinking
        rollout = _rolled_out(tokenizer, thinks=False)
    texts = dict.fromkeys(range(3), HINT)
    (sites,), counts = find_hint_sites(
        [rollout], tokenizer=bound, hint_generator=lambda kind, meta: HINT, feedback=[texts]
    )
    assert len(sites) == 3, counts
    role = "user" if counts["hint_role_user"] else "system"
    segments = said_in(tokenizer, rollout.ids, [0] * len(rollout.prompt_ids) + rollout.generated)
    for place, site, segment in zip(rollout.spoken, sites, segments, strict=True):
        (span,) = site.spans
        assert tokenizer.decode(rollout.ids[slice(*span)]) == segment, "the loss is on what was sampled"
        _check_hint(tokenizer, site.hinted(rollout.ids), [*rollout.prompt, *rollout.messages[:place]], role, segment)
    return EXACT


def _rolled_out(tokenizer: Any, *, thinks: bool) -> Rollout:
    """A rollout as TRL's tool loop puts it together: two calls, and an answer."""
    prompt: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    said = _messages([called("a.py", 1), called("b.py", 2), {"role": "assistant", "content": ANSWER}], thinks)
    trainer = SimpleNamespace(
        processing_class=tokenizer, _tokenizer=tokenizer, chat_template=None, chat_template_kwargs={}, _is_vlm=False
    )
    messages, ids, generated = [], [], []  # type: ignore[var-annotated]
    for message in said:
        turn = render_response(tokenizer, prompt, message, tools=[READ])[1]
        messages, ids, generated = [*messages, message], [*ids, *turn], [*generated, *([1] * len(turn))]
        if message.get("tool_calls"):
            result = {"role": "tool", "name": "read_file", "content": f"result of {len(messages)}"}
            suffix = GRPOTrainer._get_tool_suffix_ids(trainer, [result])
            messages, ids, generated = [*messages, result], [*ids, *suffix], [*generated, *([0] * len(suffix))]
    prompt_ids = tokenizer.apply_chat_template(prompt, tools=[READ], add_generation_prompt=True, return_dict=False)
    return Rollout(prompt, messages, prompt_ids, ids, generated, [READ])


def _messages(turns: list[dict[str, Any]], keeps_thinking: bool) -> list[dict[str, Any]]:
    """Turns as a template takes them."""
    messages = []
    for turn in turns:
        message: dict[str, Any] = {key: turn[key] for key in ("role", "content", "tool_call_id") if key in turn}
        if keeps_thinking and "thinking" in turn:
            message["reasoning_content"] = turn["thinking"]
        if "tool_calls" in turn:
            message["tool_calls"] = [
                {"id": one["id"], "type": "function", "function": {key: one[key] for key in ("name", "arguments")}}
                for one in turn["tool_calls"]
            ]
        messages.append(message)
    return with_result_names(messages)


def said_in(tokenizer: Any, ids: Sequence[int], mask: Sequence[int]) -> list[str]:
    """The decoded runs of tokens that a mask selects."""
    runs = groupby(zip(ids, mask, strict=True), lambda one: one[1])
    return [tokenizer.decode([token for token, _ in run]) for flag, run in runs if flag]


def _check_turn(tokenizer: Any, conversation: list[dict[str, Any]], segment: str) -> None:
    """The segment is what the model says in the last turn, to the token that ends it, and nothing of the template's."""

    def shown(messages: list[dict[str, Any]], **options: Any) -> str:
        text: str = tokenizer.apply_chat_template(messages, tools=[READ], tokenize=False, **options)
        return text

    *before, turn = conversation
    path = turn["tool_calls"][0]["function"]["arguments"]["path"] if "tool_calls" in turn else ""
    for part in (turn["content"], path, turn.get("reasoning_content", "")):
        assert part in segment, f"{part!r} carries loss"
    end = next((mark for mark in END_OF_TURN if segment.endswith(mark)), "")
    assert end, f"{segment!r} ends with the end of the turn"
    text, words = shown(conversation).removeprefix(shown(before)), segment.removesuffix(end)
    assert words in text
    lead, after = text[: text.index(words)], text[text.index(words) + len(words) :]
    assert after.strip() in ("", end, f"{end}{tokenizer.eos_token}", f"{end}\n{tokenizer.eos_token}"), after
    prompt = shown(before, add_generation_prompt=True).removeprefix(shown(before))
    if turn.get("reasoning_content"):
        assert lead == prompt
    else:
        _check_opening(lead, prompt)
        assert "think" not in words, f"{words!r} has no block of thinking"


def _check_opening(lead: str, prompt: str) -> None:
    """A turn opens with the generation prompt, and with an empty block of thinking if that is the template's way."""
    squeezed = "".join(lead.split())
    assert squeezed.startswith("".join(prompt.split())), (lead, prompt)
    assert squeezed.removeprefix("".join(prompt.split())) in ("", "</think>", "<think></think>"), (lead, prompt)


def _check_hint(tokenizer: Any, ids: list[int], context: list[dict[str, Any]], role: str, segment: str) -> None:
    """The hinted context ends with the context's last message, the hint and the turn, as the template frames them."""
    text, last = tokenizer.decode(ids), context[-1]["content"]
    assert text.count(HINT) == 1
    assert text.endswith(segment)
    after = text.removesuffix(segment).rpartition(last)[2]
    assert HINT in after
    hinted = [*context, {"role": role, "content": HINT}]
    framed = tokenizer.apply_chat_template(hinted, tools=[READ], tokenize=False, add_generation_prompt=True)
    _check_opening(after, framed.rpartition(last)[2])


def table_row(name: str) -> str:
    """A template's verdicts as a line of the table."""
    return f"| {name} | {' | '.join(verdict(name, use) for use in USES)} |"


def documented_table() -> list[str]:
    """The lines of the table on the page."""
    return [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head = [f"| template | {' | '.join(USES)} |", f"|---|{'---|' * len(USES)}"]
    above = text[: text.index("| template |")]
    PAGE.write_text(above + "\n".join([*head, *map(table_row, TEMPLATES)]) + "\n", encoding="utf-8")
