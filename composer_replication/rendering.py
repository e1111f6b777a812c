"""Conversations as token ids, rendered once by the tokenizer's own chat template; hints spliced into these ids.

The rendering tells which tokens belong to which turn: the text up to a turn is a prefix of the whole text, and the
tokenizer's offsets give its end in tokens. Messages are never tokenised apart and joined, because that does not give
the ids that the model sees. The one exception is the end of a generation prompt, where the model itself begins anew: if
the first characters of an answer would merge with a prompt token, the text is cut there.

Logged conversations and sampled rollouts share `TurnSpan` (where a turn is), `Splice` (where a hint goes) and
`hinted_rows` (the hinted contexts and the index pairs of channel 2).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from composer_replication.chat_templates import (
    TemplateRefusedError,
    Tools,
    after_turn,
    encodable,
    end_of_turn_ids,
    opening_without_thinking,
    template_text,
    tokenise,
    turn_border,
)
from composer_replication.traces import Message


@dataclass(frozen=True)
class TurnSpan:
    """The position of an assistant turn in token ids.

    `[start, stop)` are its own tokens, from the first one it generates to its end-of-turn token. An empty block of
    thinking that the template puts before a turn is not its own. `header` is where its header begins, which is where a
    hint goes; None if no header of the template precedes it. `message` is the index of its message, if there are
    messages.
    """

    message: int | None
    header: int | None
    start: int
    stop: int


@dataclass(frozen=True)
class RenderedConversation:
    """The ids of a conversation, and its assistant turns in order."""

    ids: list[int]
    turns: list[TurnSpan]

    def response_mask(self) -> list[int]:
        """1 on the tokens that an assistant turn generated, 0 elsewhere."""
        mask = [0] * len(self.ids)
        for turn in self.turns:
            mask[turn.start : turn.stop] = [1] * (turn.stop - turn.start)
        return mask


@dataclass(frozen=True)
class Splice:
    """A hint in a row of ids: `hint_ids` go in at `header`, the loss applies to the tokens in `spans`.

    The hinted context ends with the last span: a causal model does not see what follows. Positions are indices into the
    row without padding.
    """

    hint_ids: tuple[int, ...]
    header: int
    spans: tuple[tuple[int, int], ...]

    @property
    def shift(self) -> int:
        """How far the tokens after the hint move to the right."""
        return len(self.hint_ids)

    def hinted(self, ids: Sequence[int]) -> list[int]:
        """Return the hinted context for the row with these ids."""
        return [*ids[: self.header], *self.hint_ids, *ids[self.header : self.spans[-1][1]]]

    def tokens(self) -> list[int]:
        """The positions that carry loss."""
        return [token for span in self.spans for token in range(*span)]


def render_conversation(tokenizer: Any, messages: Sequence[Message], *, tools: Tools = None) -> RenderedConversation:
    """Render and tokenise a conversation, and locate its assistant turns.

    Raises:
        ValueError: the template rewrites earlier turns as the conversation grows, or the tokenizer gives no offsets.
    """
    text = template_text(tokenizer, messages, tools)
    borders = _turn_borders(tokenizer, messages, tools, text)
    ids, starts = tokenise(tokenizer, text)
    cuts = _merged_prompts(tokenizer, text, borders, ids, starts)
    if cuts:
        ids, starts = _tokenise_pieces(tokenizer, text, cuts)
    characters, ends = [*starts, len(text)], end_of_turn_ids(tokenizer)
    turns = []
    for border in borders:
        header, start, stop = (_token_at(characters, character, border.message) for character in border[1:])
        end = _end_of_turn(text, characters, ids, start, stop, ends)
        if end is None:
            ids, end = _with_end(tokenizer, messages[border.message], ids, stop, ends)
        turns.append(TurnSpan(border.message, header, start, end))
    return RenderedConversation(ids, turns)


def render_response(
    tokenizer: Any, prompt: Sequence[Message], response: Message, *, tools: Tools = None
) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt, generation prompt included, and the ids that the model would have to generate to
    answer it with `response`, end of turn included.

    Raises:
        ValueError: the template does not show the response after the generation prompt.
    """
    text = template_text(tokenizer, [*prompt, response], tools)
    opening = opening_without_thinking(tokenizer)
    prompt_text = template_text(tokenizer, prompt, tools, add_generation_prompt=not opening) + opening
    if opening and not text.startswith(prompt_text):
        prompt_text = template_text(tokenizer, prompt, tools, add_generation_prompt=True)
    if not text.startswith(prompt_text):
        raise ValueError("the chat template is not prefix-preserving: the response is not what follows its prompt")
    prompt_ids = tokenise(tokenizer, prompt_text)[0]
    ids, starts = tokenise(tokenizer, text)
    if ids[: len(prompt_ids)] != prompt_ids:
        ids, starts = _tokenise_pieces(tokenizer, text, [len(prompt_text)])
    ends, start = end_of_turn_ids(tokenizer), len(prompt_ids)
    end = _end_of_turn(text, [*starts, len(text)], ids, start, len(ids), ends)
    if end is None:
        ids, end = _with_end(tokenizer, response, ids, len(ids), ends)
    return prompt_ids, ids[start:end]


def hint_message(
    tokenizer: Any, context: Sequence[Message], hint: str, *, role: str = "system", tools: Tools = None
) -> tuple[list[int], str]:
    """Return the ids that put a hint between `context` and the assistant's turn after it, and the role of its message:
    "user" where the template does not show a message of `role` there.

    Raises:
        TemplateRefusedError: the template shows it in neither role.
    """
    hint = encodable(hint)
    for shown in dict.fromkeys((role, "user")):
        try:
            border = turn_border(tokenizer, context, tools=tools, hint={"role": shown, "content": hint})
        except TemplateRefusedError as error:
            refusal = error
            continue
        return tokenise(tokenizer, border.hint)[0], shown
    raise refusal


def generation_header_ids(tokenizer: Any, context: Sequence[Message], *, tools: Tools = None) -> list[int]:
    """Return the ids that prompt the assistant to speak after `context`; a hint goes before them. There may be none: in
    some templates a turn goes on after a tool's result.

    Raises:
        TemplateRefusedError: the generation prompt rewrites the conversation.
    """
    return tokenise(tokenizer, turn_border(tokenizer, context, tools=tools).header)[0]


def hinted_rows(
    rows: Sequence[Sequence[int]],
    splices: Sequence[Sequence[Splice]],
    *,
    pad_token_id: int,
    left_padding: Sequence[int] | None = None,
) -> dict[str, torch.Tensor]:
    """Build the hinted contexts of a batch, and the index pairs that find the same tokens in both contexts.

    Args:
        rows: the ids of each row of `input_ids`, without padding.
        splices: the hints of each row; there must be at least one.
        pad_token_id: fills the hinted contexts on the right.
        left_padding: the number of padding columns before each row in `input_ids`; none if not given.

    Returns:
        `ctx_teacher_input_ids` and `ctx_teacher_attention_mask` (hints, T), one row per hint in order;
        `sdpo_student_index` and `sdpo_teacher_index` (tokens, 2), the row and column of each token that carries loss in
        `input_ids` and in `ctx_teacher_input_ids`.
    """
    paddings = left_padding or [0] * len(rows)
    hints = [(row, splice) for row, own in enumerate(splices) for splice in own]
    student = [(row, paddings[row] + token) for row, splice in hints for token in splice.tokens()]
    teacher = [(number, token + splice.shift) for number, (_, splice) in enumerate(hints) for token in splice.tokens()]
    return {
        **padded("ctx_teacher_", [splice.hinted(rows[row]) for row, splice in hints], pad_token_id),
        "sdpo_student_index": torch.tensor(student),
        "sdpo_teacher_index": torch.tensor(teacher),
    }


def padded(prefix: str, rows: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Return `{prefix}input_ids` and `{prefix}attention_mask` (rows, longest), padded on the right."""
    return {
        f"{prefix}input_ids": stacked(rows, pad_token_id),
        f"{prefix}attention_mask": stacked([[1] * len(row) for row in rows], 0),
    }


def stacked(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    """Stack rows of different lengths into one tensor, filled up on the right."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=filler)


class _Border(NamedTuple):
    """An assistant message in the whole text: the characters where its header, its words and the next message begin."""

    message: int
    header: int
    start: int
    stop: int


def _turn_borders(tokenizer: Any, messages: Sequence[Message], tools: Tools, text: str) -> list[_Border]:
    """Locate the assistant messages in the rendering of all messages.

    The rendering up to a message must be a prefix of the whole. Rendering every prefix would take time that grows with
    the square of the conversation, so all but the first and the last are checked through a window: the conversation up
    to its first answer, followed by the messages from one answer to the next. What the window adds must be in the whole
    text where the turn before ended; if it is not, the prefix is rendered in full.
    """
    spoken = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if spoken[:1] == [0]:
        raise ValueError("the conversation begins with an assistant message: nothing prompts it")
    borders: list[_Border] = []
    opening = opening_without_thinking(tokenizer) if spoken else ""
    for previous, index in zip([-1, *spoken], spoken, strict=False):
        shown = None
        if borders and index != spoken[-1]:
            window = [*messages[: spoken[0] + 1], *messages[previous + 1 : index + 1]]
            shown = _shown(tokenizer, window, tools, text, opening, text[: borders[0].stop], borders[-1].stop)
        if shown is None:
            shown = _shown(tokenizer, messages[: index + 1], tools, text, opening)
        if shown is None:
            raise ValueError(
                "the chat template is not prefix-preserving: what it renders up to message "
                f"{index} is not how the whole conversation begins"
            )
        borders.append(_Border(index, *shown))
    return borders


def _shown(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Tools,
    whole: str,
    opening: str,
    lead: str = "",
    offset: int = 0,
) -> tuple[int, int, int] | None:
    """Locate the header, the words and the end of the last of `messages` in the whole text; None unless the whole text
    has at `offset` what the messages add after `lead`. `opening` is what `opening_without_thinking` gave."""

    def end(part: Sequence[Message], prompting: bool = False) -> int | None:
        try:
            text = template_text(tokenizer, part, tools, add_generation_prompt=prompting)
        except TemplateRefusedError:  # a window's messages may not follow each other as the whole's do
            return None
        fits = text.startswith(lead) and whole.startswith(text[len(lead) :], offset)
        return offset + len(text) - len(lead) if fits else None

    header, stop = end(messages[:-1]), end(messages)
    if header is None or stop is None:
        return None
    start = header + len(opening) if opening and whole.startswith(opening, header) else end(messages[:-1], True)
    return None if start is None else (header, start, stop)


def _merged_prompts(
    tokenizer: Any, text: str, borders: Sequence[_Border], ids: list[int], starts: list[int]
) -> list[int]:
    """Return the ends, in characters, of the generation prompts whose tokens change with what follows them."""
    characters = [*starts, len(text)]
    prompts: dict[str, list[int]] = {}
    cuts = []
    for border in borders:
        header = _token_at(characters, border.header, border.message)
        prompt = text[border.header : border.start]
        if prompt not in prompts:
            prompts[prompt] = tokenise(tokenizer, prompt)[0]
        start = header + len(prompts[prompt])
        if ids[header:start] != prompts[prompt] or characters[start] != border.start:
            cuts.append(border.start)
    return cuts


def _tokenise_pieces(tokenizer: Any, text: str, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """As `tokenise`, with no token across a cut."""
    ids: list[int] = []
    starts: list[int] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece_ids, piece_starts = tokenise(tokenizer, text[begin:end])
        ids += piece_ids
        starts += [begin + start for start in piece_starts]
    return ids, starts


def _token_at(borders: list[int], character: int, turn: int) -> int:
    token = bisect_left(borders, character)
    if borders[token] != character:
        raise ValueError(
            f"a token straddles the border of message {turn}: its tokens cannot be told from its neighbour's"
        )
    return token


def _end_of_turn(
    text: str, characters: list[int], ids: list[int], start: int, stop: int, ends: frozenset[int]
) -> int | None:
    """Return where the turn in [start, stop) ends, its end-of-turn token included; None if it has none of its own.

    What the template adds after that token (a line break, mostly) is never generated. The same token amid the turn's
    text is something that the model says.
    """
    end = None
    for index in range(stop - 1, start - 1, -1):
        if ids[index] in ends:
            end = index + 1
        elif text[characters[index] : characters[index + 1]].strip():
            break
    return end


def _with_end(tokenizer: Any, turn: Message, ids: list[int], stop: int, ends: frozenset[int]) -> tuple[list[int], int]:
    """Return the ids, and the end of a turn that stops without an end-of-turn token of its own.

    Some templates write that token as the beginning of the next message. A turn that no message follows gets it.
    """
    if stop < len(ids):
        return ids, stop + (ids[stop] in ends)
    try:
        following = tokenise(tokenizer, after_turn(tokenizer, calls=bool(turn.get("tool_calls"))))[0]
    except TemplateRefusedError:
        return ids, stop
    ids = [*ids, *(one for one in following[:1] if one in ends)]
    return ids, len(ids)
