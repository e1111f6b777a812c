"""Conversations that are too long: rows, masks, hinted contexts and prompts of pairs, read from their decoded ids."""

from __future__ import annotations

import copy
import logging
import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from trainer.agent_traces import TOOLS, call, said, tokenizer_of

from composer_replication.rendering import render_conversation, render_response
from composer_replication.trainer import trace_rows
from composer_replication.trainer.conversations import Conversation, conversations, trace_turns
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.preference_rows import PreferenceStats, preference_rows
from composer_replication.trainer.trace_rows import TraceRow, rendered_traces

LEAD = 2  # system prompt and task
# Every user message but the first may only follow an assistant's text, as in Mistral's own template.
MISTRAL = """{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- set talk = messages[1:] if messages[0].role == 'system' else messages -%}
{%- set ns = namespace(index=0) -%}
{%- for m in talk -%}
  {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}
    {%- if (m.role == 'user') != (ns.index % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
    {%- set ns.index = ns.index + 1 -%}
  {%- elif m.role == 'system' -%}{{ raise_exception('only the first message may be the system\\'s') }}
  {%- endif -%}
{%- endfor -%}
{%- for m in talk -%}
  {%- if m.role == 'user' -%}
    {%- if loop.first -%}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' + '[INST]' + system }}
    {%- else -%}{{ '[INST]' }}{%- endif -%}
    {{ m.content + '[/INST]' }}
  {%- elif m.role == 'tool' -%}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
  {%- elif m.tool_calls -%}{{ '[TOOL_CALLS]' + (m.tool_calls | tojson) + '<|im_end|>' }}
  {%- else -%}{{ m.content + '<|im_end|>' }}
  {%- endif -%}
{%- endfor -%}"""
WITH_HINTS = ("qwen2_5", "llama3_1")  # the others want roles to alternate, and a hint comes between
NAMES = (*WITH_HINTS, "mistral", "gemma3")


@lru_cache
def tokenizer(name: str) -> Any:
    if name in ("qwen2_5", "llama3_1"):
        return tokenizer_of(name)
    made = copy.deepcopy(tokenizer_of("qwen2_5"))
    folder = Path(find_spec("trl").submodule_search_locations[0]) / "chat_templates"  # type: ignore[union-attr, index]
    gemma = (folder / "gemma3_training.jinja").read_text(encoding="utf-8").replace("{{ bos_token }}", "")
    made.chat_template = MISTRAL if name == "mistral" else gemma
    return made


def trace(name: str, rounds: int = 14) -> Any:
    """A conversation in which message i says "[[i … i]]": with calls, parallel where the template takes them, an error
    in every third turn and a new question in every fourth."""
    draw = random.Random(rounds)
    turns: list[dict[str, Any]] = []

    def text(most: int = 14) -> str:
        words = " ".join(
            draw.choice(("read", "the file", "x = 1", "Überprüfe", "0x1f")) for _ in range(1 + draw.randrange(most))
        )
        return f"[[{len(turns)} {words} {len(turns)}]]"

    turns += [{"role": "system", "content": text()}]
    turns += [{"role": "user", "content": text()}]
    for number in range(rounds):
        wrong = {"tool_error": "tool_not_found", "error_meta": {"number": number}} if number % 3 == 1 else {}
        asks_again = name != "mistral" and number % 4 == 3
        calls = 0 if name == "gemma3" or asks_again else 2 if name == "qwen2_5" and number % 2 else 1
        said_here = text()
        if calls:
            ids = [f"c{number}_{one}" for one in range(calls)]
            made = [call(one, path=said_here if one == ids[0] else "b.py") for one in ids]
            turns.append({"role": "assistant", "content": "", "tool_calls": made, **wrong})
            for one in ids:
                turns.append({"role": "tool", "tool_call_id": one, "content": text(40)})
        else:
            turns.append({"role": "assistant", "content": said_here, **wrong})
        if asks_again or name == "gemma3":
            turns.append({"role": "user", "content": text()})
    tools = None if name == "gemma3" else TOOLS
    return {"trace_id": "long", "turns": turns, "tools": tools, "final_reward": 1.0}


def hint(kind: str, meta: dict[str, Any]) -> str:
    return f"Nota bene {meta['number']}."


def conversation_of(example: Any) -> Conversation:
    (made,) = conversations(trace_turns(example))
    return made


def spoken(name: str, turn: dict[str, Any]) -> str:
    """The tokens of a turn as text."""
    if name == "gemma3":
        return f"{turn['content']}<end_of_turn>\n"
    if name == "mistral":
        return "" if turn.get("tool_calls") else f"{turn['content']}<|im_end|>"
    return said(name, turn)


def shown(text: str) -> list[int]:
    """The messages that a text shows, in order; none is there twice or in part."""
    begun = [int(number) for number in re.findall(r"\[\[(\d+) ", text)]
    assert [int(number) for number in re.findall(r" (\d+)\]\]", text)] == begun
    assert len(set(begun)) == len(begun)
    return begun


def expected(messages: Sequence[Any], first: int, end: int) -> list[Any]:
    """The messages of a window, as this file understands the rule."""
    if first == LEAD:
        return list(messages[:end])
    task = messages[LEAD - 1]["content"]
    count = first - LEAD
    parts = [task, "[1 message is left out here.]" if count == 1 else f"[{count} messages are left out here.]"]
    if messages[first]["role"] == "user":
        parts.append(messages[first]["content"])
        first += 1
    return [*messages[: LEAD - 1], {"role": "user", "content": "\n\n".join(parts)}, *messages[first:end]]


def check_window(name: str, ids: Sequence[int], example: Any, messages: Sequence[Any]) -> list[int]:
    """Check one window, and return the messages it shows."""
    text = tokenizer(name).decode(ids)
    kept = shown(text)
    assert kept[:LEAD] == list(range(LEAD))
    first, end = kept[LEAD], kept[-1] + 1
    assert kept[LEAD:] == list(range(first, end))
    roles = [message["role"] for message in messages]
    assert roles[first] != "tool"  # its call would be missing
    assert first == LEAD or roles[first - 1] != "user"  # the question would be missing
    if example["tools"]:
        assert all(f"The tool {tool['function']['name']}." in text for tool in example["tools"])
    if first == LEAD:
        assert "left out here" not in text
    else:
        marker = f"{first - LEAD} message{'s are' if first - LEAD > 1 else ' is'} left out here.]"
        assert text.count("left out here") == 1
        assert text.index(f" {LEAD - 1}]]") < text.index(marker) < text.index(f"[[{first} ")
    made = render_conversation(tokenizer(name), expected(messages, first, end), tools=example["tools"])
    assert list(ids[: len(made.ids)]) == made.ids
    return kept


def longer(name: str, kept: Sequence[int], example: Any, messages: Sequence[Any]) -> int | None:
    """The tokens of the window with one more exchange; None if there is none."""
    roles = [message["role"] for message in messages]
    starts = [
        place
        for place in range(LEAD, kept[LEAD])
        if place == LEAD or (roles[place] != "tool" and roles[place - 1] in ("assistant", "tool"))
    ]
    if not starts:
        return None
    more = expected(messages, starts[-1], kept[-1] + 1)
    return len(render_conversation(tokenizer(name), more, tools=example["tools"]).ids)


def runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    found, column = [], 0
    for flag, run in groupby(mask):
        length = len(list(run))
        found += [(column, column + length)] if flag else []
        column += length
    return found


def rows_of(name: str, example: Any, **settings: Any) -> tuple[list[TraceRow], Any]:
    config = CollatorConfig(hint_generator=hint if name in WITH_HINTS else None, **settings)
    collator = ComposerDataCollator(tokenizer(name), config)
    return collator.rows(example), collator.stats


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("limit", "most"), [(0.4, 1), (0.4, 3), (0.3, 20), (0.8, 2)])
def test_every_window_mask_and_hinted_context(name: str, limit: float, most: int) -> None:
    example = trace(name)
    messages = conversation_of(example).messages
    (whole,), _ = rows_of(name, example, max_seq_len=10**6)
    length = int(limit * len(whole.ids))
    rows, stats = rows_of(name, example, max_seq_len=length, max_windows=most)
    assert 1 <= len(rows) <= most
    decode = tokenizer(name).decode
    learned: Counter[int] = Counter()
    seen: set[int] = set()
    hinted: list[int] = []
    for number, row in enumerate(rows):
        assert len(row.ids) <= length
        kept = check_window(name, row.ids, example, messages)
        seen |= set(kept)
        assert messages[kept[-1]]["role"] == "assistant"
        assert number > 0 or kept[-1] == max(i for i, one in enumerate(messages) if one["role"] == "assistant")
        hints = [len(site.hint_ids) for site in row.sites]
        more = longer(name, kept, example, messages)
        assert more is None or more > length - max(hints, default=0)
        for start, stop in runs(row.response_mask):
            text = decode(row.ids[start:stop])
            (message,) = shown(text)
            learned[message] += 1
            assert text == (spoken(name, example["turns"][message]) or text)
        for site in row.sites:
            ids = site.hinted(row.ids)
            assert len(ids) <= length
            ((start, stop),) = site.spans
            (message,) = shown(decode(row.ids[start:stop]))
            assert decode(ids).count("Nota bene") == 1
            assert hint("", example["turns"][message]["error_meta"]) in decode(ids[site.header : -(stop - site.header)])
            assert ids[: site.header] + ids[site.header + len(site.hint_ids) :] == row.ids[:stop]
            assert shown(decode(ids)) == kept[: kept.index(message) + 1]
            assert (start, stop) in runs(row.response_mask)
            hinted.append(message)
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    errors = [place for place in answers if "tool_error" in example["turns"][place]]
    assert set(learned.values()) == {1}
    assert set(learned) == seen & set(answers)
    lost = len(answers) - len(learned)
    assert stats.turns_dropped == ({"beyond max_windows": lost} if lost else {})
    assert lost == 0 or most < 20
    assert stats.messages_left_out == len(messages) - len(seen)
    assert stats.truncated_rows == 1
    if name in WITH_HINTS:
        assert sorted(hinted) == sorted(set(errors) & seen)
        assert stats.sites == stats.hint_role_used.total() == len(hinted)
        assert stats.sites_dropped["beyond max_windows"] == len(errors) - len(hinted)


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_that_fits_is_rendered_as_it_is(name: str) -> None:
    example = trace(name, rounds=5)
    made = conversation_of(example)
    whole = render_conversation(tokenizer(name), made.messages, tools=example["tools"])
    (row,), stats = rows_of(name, example, max_seq_len=len(whole.ids), enable_sdpo=False, max_windows=9)
    assert (row.ids, row.response_mask) == (whole.ids, whole.response_mask())
    assert (stats.truncated_rows, stats.truncated_tokens, stats.messages_left_out) == (0, 0, 0)
    (row, *_), stats = rows_of(name, example, max_seq_len=len(whole.ids) - 1, enable_sdpo=False)
    assert row.ids != whole.ids[: len(row.ids)] or len(shown(tokenizer(name).decode(row.ids))) < len(made.messages)
    assert stats.truncated_rows == 1


def test_the_tokens_in_no_row_are_those_of_the_messages_in_no_row(qwen_tokenizer: Any) -> None:
    example = trace("qwen2_5")
    messages = conversation_of(example).messages
    (row,), stats = rows_of("qwen2_5", example, max_seq_len=1500)
    lengths = [
        len(qwen_tokenizer.apply_chat_template(messages[:end], tools=TOOLS, return_dict=False))
        for end in range(1, len(messages) + 1)
    ]
    kept = shown(qwen_tokenizer.decode(row.ids))
    exact = sum(lengths[place] - lengths[place - 1] for place in range(len(messages)) if place not in kept)
    # A border between results and a new question is found by the length of their texts.
    assert stats.truncated_tokens == pytest.approx(exact, abs=4)


def test_the_whole_is_rendered_once_and_each_window_hardly_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counting(given: Any, messages: Sequence[Any], **settings: Any) -> Any:
        lengths.append(len(messages))
        return render_conversation(given, messages, **settings)

    monkeypatch.setattr(trace_rows, "render_conversation", counting)
    example = trace("qwen2_5", rounds=60)
    rows, stats = rows_of("qwen2_5", example, max_seq_len=1500, max_windows=8)
    whole, *windows = lengths
    assert (whole, len(rows)) == (len(conversation_of(example).messages), 8)
    assert len(windows) <= 12
    assert sum(windows) < 3 * whole
    assert stats.turns_dropped["beyond max_windows"] > 0


def turn_of(*texts: str) -> list[dict[str, Any]]:
    """A system prompt, then user and assistant in turn."""
    return [
        {"role": role, "content": f"[[{number} {text} {number}]]"}
        for number, (role, text) in enumerate(zip(("system", *("user", "assistant") * 20), texts, strict=False))
    ]


def talk(*texts: str, wrong: Sequence[int] = ()) -> Any:
    turns = turn_of(*texts)
    for place in wrong:
        turns[place] |= {"tool_error": "tool_not_found", "error_meta": {"number": place}}
    return {"trace_id": "talk", "turns": turns, "final_reward": 0.0, "tools": None}


def test_a_window_in_the_middle_ends_with_its_turn(qwen_tokenizer: Any) -> None:
    word = "read the file " * 8
    example = talk("Rules.", "Task.", *[word] * 16, wrong=[8])
    (last, middle), stats = rows_of("qwen2_5", example, max_seq_len=300, max_windows=2)
    assert shown(qwen_tokenizer.decode(last.ids))[-1] == 16  # what the user said last has no answer
    text = qwen_tokenizer.decode(middle.ids)
    assert shown(text)[-1] == 8
    assert "left out" not in text[text.index("[[8 ") :]
    assert [shown(qwen_tokenizer.decode(middle.ids[slice(*site.spans[0])])) for site in middle.sites] == [[8]]
    assert stats.sites == 1


def test_a_turn_is_learned_where_most_of_what_came_before_it_is_shown(qwen_tokenizer: Any) -> None:
    example = trace("qwen2_5", rounds=30)
    messages = conversation_of(example).messages
    rows, _ = rows_of("qwen2_5", example, max_seq_len=1600, max_windows=30, enable_sdpo=False)
    texts = [shown(qwen_tokenizer.decode(row.ids)) for row in rows]
    for row, kept in zip(rows, texts, strict=True):
        for start, stop in runs(row.response_mask):
            (message,) = shown(qwen_tokenizer.decode(row.ids[start:stop]))
            others = [other for other in texts if message in other]
            assert kept[LEAD] == min(other[LEAD] for other in others)
            # Nothing but the length of what is there keeps the message before it out.
            assert message - 1 in kept or (kept[-1] == message and messages[message - 1]["role"] != "user")


def test_a_hint_has_room_without_cutting_its_context(qwen_tokenizer: Any) -> None:
    example = talk("Rules.", "Task.", *["read the file " * 6] * 9, wrong=[10])
    (whole,), _ = rows_of("qwen2_5", example, max_seq_len=10**6)
    (site,) = whole.sites
    length = len(site.hinted(whole.ids))
    assert length > len(whole.ids)
    (row,), stats = rows_of("qwen2_5", example, max_seq_len=length)
    assert (row, stats.truncated_rows) == (whole, 0)
    # The row would fit; its hinted context would not.
    (row,), stats = rows_of("qwen2_5", example, max_seq_len=length - 1)
    assert len(row.sites[0].hinted(row.ids)) < length
    check_window("qwen2_5", row.ids, example, conversation_of(example).messages)
    assert (stats.truncated_rows, stats.messages_left_out, stats.sites) == (1, 1, 1)
    (row,), _ = rows_of("qwen2_5", example, max_seq_len=length - 1, enable_sdpo=False)
    assert row.ids == whole.ids


def test_a_hint_that_fits_nowhere_costs_no_messages(qwen_tokenizer: Any) -> None:
    example = talk("Rules.", "Task.", "Answer.", "More.", "Wrong.", "Thanks.", wrong=[2, 4])
    (whole,), _ = rows_of("qwen2_5", example, max_seq_len=10**6)
    config = CollatorConfig(
        hint_generator=lambda kind, meta: "long " * 200 if meta["number"] == 4 else "Short.", max_seq_len=len(whole.ids)
    )
    collator = ComposerDataCollator(qwen_tokenizer, config)
    (row,) = collator.rows(example)
    assert (row.ids, row.response_mask) == (whole.ids, whole.response_mask)
    assert [site.hint for site in row.sites] == ["Short."]
    assert collator.stats.sites_dropped == {"too long": 1}
    assert (collator.stats.truncated_rows, collator.stats.turns_dropped) == (0, {})


def test_a_turn_that_does_not_fit_beside_the_task_is_lost_and_the_others_are_not(qwen_tokenizer: Any) -> None:
    example = talk("Rules.", "Task.", "Answer.", "More.", "big " * 300, "And?", "Last.", "Too.", "big " * 300)
    rows, stats = rows_of("qwen2_5", example, max_seq_len=200, max_windows=8)
    assert [shown(qwen_tokenizer.decode(row.ids)) for row in rows] == [[0, 1, 5, 6], [0, 1, 2]]
    assert all("big" not in qwen_tokenizer.decode(row.ids) for row in rows)
    assert stats.turns_dropped == {"too long": 2}
    assert (stats.rows, stats.messages_left_out) == (2, 4)
    assert "[3 messages are left out here.]\n\n[[5 And?" in qwen_tokenizer.decode(rows[0].ids)


def test_what_follows_the_last_answer_goes_before_anything_else(qwen_tokenizer: Any) -> None:
    texts = ("Rules.", "Task.", "Ok.", "More.", "Done.")
    whole = render_conversation(qwen_tokenizer, turn_of(*texts))
    (row,), stats = rows_of("qwen2_5", talk(*texts, "Thanks, " * 50), max_seq_len=len(whole.ids))
    assert (row.ids, stats.messages_left_out) == (whole.ids, 1)


def test_the_least_length_is_what_fits_exactly(qwen_tokenizer: Any) -> None:
    messages = turn_of("Rules.", "Task " * 30, "Answer.", "More.", "An answer.")
    shortest = expected(messages, 3, 5)
    least = len(render_conversation(qwen_tokenizer, shortest).ids)
    (row,), _ = rows_of("qwen2_5", talk("Rules.", "Task " * 30, "Answer.", "More.", "An answer."), max_seq_len=least)
    assert row.ids == render_conversation(qwen_tokenizer, shortest).ids


def test_if_nothing_fits_the_error_names_the_sizes_and_the_setting(qwen_tokenizer: Any) -> None:
    collator = ComposerDataCollator(qwen_tokenizer, CollatorConfig(max_seq_len=100))
    example = talk("Rules.", "Task " * 100, "Answer.")
    size = len(render_conversation(qwen_tokenizer, example["turns"]).ids)
    complaint = rf"task and the shortest turn take about {size} tokens, and a row holds 100: raise max_seq_len \(data"
    with pytest.raises(ValueError, match=f"none of the traces can be trained on: .*{complaint}"):
        rendered_traces([example], collator)
    with pytest.raises(ValueError, match=f"none of the batch's 1 examples has .*{complaint}"):
        collator([example])
    assert (collator.stats.messages_left_out, collator.stats.truncated_tokens) == (2 * 3, 2 * size)


def test_what_was_left_out_is_said(qwen_tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    collator = ComposerDataCollator(qwen_tokenizer, CollatorConfig(max_seq_len=120))
    with caplog.at_level(logging.WARNING):
        rendered_traces([talk("Rules.", "Task.", *["read the file"] * 9)], collator)
    stats = collator.stats
    assert [record.getMessage() for record in caplog.records] == [
        f"1 conversations are longer than max_seq_len: {stats.messages_left_out} of their messages "
        f"({stats.truncated_tokens} tokens) are in no row; turns to learn among these: "
        f"{stats.turns_dropped['beyond max_windows']} beyond max_windows"
    ]
    assert stats.messages_left_out >= 4


ANSWERS = [[{"role": "assistant", "content": "Yes, do it."}], [{"role": "assistant", "content": "No."}]]


def pair(prompt: Sequence[Any], tools: Any = None) -> dict[str, Any]:
    return {"prompt": list(prompt), "chosen": ANSWERS[0], "rejected": ANSWERS[1], "tools": tools}


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_pairs_keep_system_tools_task_and_the_latest_messages(name: str) -> None:
    example = trace(name)
    messages = conversation_of(example).messages
    tools = example["tools"]
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for end in answers[-4:]:  # before an answer: after results, or after a question
        prompt = messages[:end]
        (whole,) = preference_rows(tokenizer(name), [pair(prompt, tools)], max_length=10**6)
        for share in (1, 0.7, 0.45):
            limit = int(share * len(whole.prompt_ids)) + max(len(whole.chosen_ids), len(whole.rejected_ids))
            stats = PreferenceStats()
            (row,) = preference_rows(tokenizer(name), [pair(prompt, tools)], max_length=limit, stats=stats)
            if share == 1:
                assert (row, stats.prompts_truncated) == (whole, 0)
                continue
            assert row[1:] == whole[1:]
            assert len(row.prompt_ids) + max(len(row.chosen_ids), len(row.rejected_ids)) <= limit
            kept = check_window(name, row.prompt_ids, example, messages)
            assert kept[-1] == end - 1
            after = render_response(tokenizer(name), expected(messages, kept[LEAD], end), ANSWERS[0][0], tools=tools)
            assert (row.prompt_ids, row.chosen_ids) == after
            assert (stats.prompts_truncated, stats.prompt_messages_left_out) == (1, end - len(kept))
            assert stats.prompt_tokens_truncated == len(whole.prompt_ids) - len(row.prompt_ids)
            assert stats.prompt_tokens_truncated > 0


def test_a_pair_whose_task_does_not_fit_is_dropped(qwen_tokenizer: Any) -> None:
    stats = PreferenceStats()
    prompt = turn_of("Rules.", "Task " * 100, "Answer.", "More.")
    assert preference_rows(qwen_tokenizer, [pair(prompt), pair(prompt[:2])], max_length=100, stats=stats) == []
    assert stats.pairs_dropped == {"prompt too long": 2}
    assert stats.dropped() == "2 prompt too long (the limit is replay_max_length, channels.replay.max_length)"
    assert (stats.prompts_truncated, stats.prompt_messages_left_out) == (0, 0)


def test_prompts_in_unusual_order_keep_what_leads_them(qwen_tokenizer: Any) -> None:
    said_more = "read the file " * 30
    for roles, marked in (
        (("system", "user", "system", "assistant", "user", "assistant", "user"), 2),  # a reminder after the task
        (("system", "assistant", "user", "assistant", "user", "assistant", "user"), 2),  # a greeting before it
        (("system", "assistant", "user", "user", "assistant", "user"), 3),
        (("system", "assistant", "assistant", "assistant"), 0),  # no task at all
    ):
        prompt = [
            {
                "role": role,
                "content": f"[[{number} {said_more if role == 'assistant' and number > 1 else 'x'} {number}]]",
            }
            for number, role in enumerate(roles)
        ]
        (whole,) = preference_rows(qwen_tokenizer, [pair(prompt)], max_length=10**6)
        (row,) = preference_rows(qwen_tokenizer, [pair(prompt)], max_length=int(0.8 * len(whole.prompt_ids)))
        text = qwen_tokenizer.decode(row.prompt_ids)
        kept = shown(text)
        assert kept[: marked + 1] == list(range(marked + 1))
        assert kept[-1] == len(roles) - 1
        left_out = len(roles) - len(kept)
        assert left_out > 0
        assert text.index(f" {marked}]]") < text.index(f"[{left_out} message") < text.index(f"[[{kept[marked + 1]} ")


def test_a_late_result_keeps_the_call_that_it_answers(qwen_tokenizer: Any) -> None:
    """Two turns call before either is answered: no prompt shows a result without its call."""

    def calling(text: str, identity: str) -> dict[str, Any]:
        function = {"name": "read_file", "arguments": {"path": text}}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": identity, "function": function}]}

    prompt = [
        {"role": "user", "content": "[[0 go 0]]"},
        {"role": "assistant", "content": f"[[1 {'more ' * 40}1]]"},
        {"role": "user", "content": "[[2 on 2]]"},
        calling("[[3 a 3]]", "p"),
        calling("[[4 b 4]]", "q"),
        {"role": "tool", "tool_call_id": "p", "content": "[[5 one 5]]"},
        {"role": "tool", "tool_call_id": "q", "content": "[[6 two 6]]"},
        {"role": "assistant", "content": "[[7 so 7]]"},
        {"role": "user", "content": "[[8 and 8]]"},
    ]
    sides = {"chosen": [{"role": "assistant", "content": "yes"}], "rejected": [{"role": "assistant", "content": "no"}]}
    pair = {"prompt": prompt, **sides, "tools": TOOLS}
    (whole,) = preference_rows(qwen_tokenizer, [pair], max_length=10_000)
    kept = set()
    for limit in range(len(whole.prompt_ids) // 4, len(whole.prompt_ids) + 10, 5):
        for row in preference_rows(qwen_tokenizer, [pair], max_length=limit):
            messages = shown(qwen_tokenizer.decode(row.prompt_ids))
            assert len({3, 4, 5, 6} & set(messages)) in (0, 4), messages
            kept.add(tuple(messages))
    assert len(kept) > 2


def test_a_window_that_the_template_refuses_leaves_the_shorter_ones(qwen_tokenizer: Any) -> None:
    given = trace("qwen2_5", rounds=6)
    whole = len(ComposerDataCollator(qwen_tokenizer, CollatorConfig(enable_sdpo=False)).rows(given)[0].ids)
    config = CollatorConfig(enable_sdpo=False, max_seq_len=whole // 2)
    (taken,) = ComposerDataCollator(qwen_tokenizer, config).rows(given)
    marker = re.findall(r"\[\d+ messages are", qwen_tokenizer.decode(taken.ids))[0]
    picky = copy.deepcopy(qwen_tokenizer)
    picky.chat_template = (
        f"{{% for m in messages if '{marker}' in m.content %}}{{{{ raise_exception('not so') }}}}{{% endfor %}}"
        + qwen_tokenizer.chat_template
    )
    (other,) = ComposerDataCollator(picky, config).rows(given)
    assert 0 < len(other.ids) < len(taken.ids)


def test_a_placeholder_is_not_counted_as_left_out(qwen_tokenizer: Any) -> None:
    turns = [{"role": "assistant", "content": f"[[{number} {'word ' * 60}{number}]]"} for number in range(3)]
    collator = ComposerDataCollator(qwen_tokenizer, CollatorConfig(max_seq_len=40))
    assert collator.rows({"trace_id": "t", "turns": turns}) == []  # type: ignore[typeddict-item]
    assert collator.stats.messages_left_out == 3
