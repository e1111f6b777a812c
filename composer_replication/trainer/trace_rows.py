"""One conversation of a trace as rows of token ids, with its hint sites."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2.exceptions import TemplateError

from composer_replication.chat_templates import Tools
from composer_replication.rendering import TurnSpan, render_conversation
from composer_replication.traces import Turn
from composer_replication.trainer.conversations import Conversation
from composer_replication.trainer.sites import HintSite, SiteFinder, error_remarks, is_erring

if TYPE_CHECKING:
    from composer_replication.trainer.data_collator import CollatorConfig

_DROPPED = {
    "not_the_students_mistake": "not the student's mistake",
    "no_next_turn": "no recovery turn",
    "truncated": "truncated",
    "too_long": "too long",
    "hint_not_rendered": "refused by the chat template",
}
"""The reasons of `sites` in the words of `RowStats.sites_dropped`."""


@dataclass(frozen=True)
class TraceRow:
    """A conversation as the student sees it. `response_mask` is 1 on the tokens that carry loss."""

    ids: Sequence[int]
    response_mask: Sequence[int]
    sites: list[HintSite]
    reward: float = 0.0

    @property
    def teaches(self) -> bool:
        """Whether a channel has something to learn from it."""
        return bool(self.sites) or any(self.response_mask)

    def compact(self) -> TraceRow:
        """Return the same row in a fifth of the memory, for keeping many."""
        return replace(self, ids=array("i", self.ids), response_mask=array("b", self.response_mask))


@dataclass
class RowStats:
    """What became of the conversations.

    `sites` are turns with a hint. `sites_dropped` counts errors without one by reason: "not the student's mistake", "no
    recovery turn", "truncated" (it is in the part of a long row that was cut), "too long" (hint and turn exceed the
    limit), "refused by the chat template". `hints_missing` are those that the hint generator had nothing to say about.
    `hint_role_used` counts the hints by their role. `truncated_rows` conversations were too long; `truncated_tokens` of
    them are in no row.
    """

    rows: int = 0
    sites: int = 0
    sites_dropped: Counter[str] = field(default_factory=Counter)
    hints_missing: int = 0
    hint_role_used: Counter[str] = field(default_factory=Counter)
    truncated_rows: int = 0
    truncated_tokens: int = 0

    def add_sites(self, finder: SiteFinder) -> None:
        """Count what became of one conversation's errors."""
        self.sites += finder.counts["sites"]
        self.hints_missing += finder.counts["no_hint"]
        self.hint_role_used.update(finder.roles)
        self.sites_dropped.update({_DROPPED[why]: n for why, n in finder.counts.items() if why in _DROPPED})


class _Window(NamedTuple):
    """A part of a conversation's ids that makes a row."""

    first: int
    end: int

    def holds(self, turn: TurnSpan) -> bool:
        """Whether a turn is in it, header included; the first token of a row is not predicted by anything."""
        return self.first <= (turn.header or 0) and self.first < turn.start and turn.stop <= self.end


def conversation_rows(
    tokenizer: Any,
    conversation: Conversation,
    turns: Sequence[Turn],
    *,
    config: CollatorConfig,
    tools: Tools,
    stats: RowStats,
) -> list[TraceRow]:
    """Render one conversation of the trace that has these turns; without a hint generator, rows have no sites.

    One that is too long loses what follows the last turn that carries loss, then its beginning. Further windows, if
    they are allowed, end with the latest errors that would be lost, then with the latest turns.

    Raises:
        ValueError: the chat template refuses the conversation, or cannot be aligned.
    """
    try:
        rendered = render_conversation(tokenizer, conversation.messages, tools=tools)
    except (TemplateError, TypeError) as error:
        raise ValueError(f"the chat template refuses the conversation: {' '.join(str(error).split())}") from error
    ids, spans, length = rendered.ids, rendered.turns, config.max_seq_len
    places = [conversation.turns[span.message] for span in spans if span.message is not None]
    shown = [None if place is None else turns[place] for place in places]
    learns = set(conversation.learned)
    learned = [number for number, span in enumerate(spans) if span.message in learns]
    finder = SiteFinder(
        tokenizer,
        config.hint_generator if config.enable_sdpo else None,
        config.sdpo_target,
        config.hint_role,
        length,
        cuts_context=True,
    )
    hints = list(finder.hints(finder.by_turn(error_remarks(shown)), learned))
    windows = [_Window(0, len(ids))]
    if len(ids) > length:
        wanted = [*(hint.turn for hint in reversed(hints)), *reversed(learned)]
        windows = _windows([spans[number] for number in wanted], length, config.max_windows)
        stats.truncated_rows += 1
        stats.truncated_tokens += len(ids) - len({at for window in windows for at in range(*window)})
    carrying = [spans[number] for number in learned if config.train_on_errors or not is_erring(shown[number])]
    masks = _masks(carrying, windows, len(ids))
    rows = [TraceRow(ids[first:end], mask[first:end], []) for (first, end), mask in zip(windows, masks, strict=True)]
    for hint in hints:
        span = spans[hint.turn]
        number = next((number for number, window in enumerate(windows) if window.holds(span)), None)
        if number is None:
            finder.counts["truncated"] += 1
            continue
        moved = span.moved(-windows[number].first)
        site = finder.place(hint, [moved], conversation.messages[: span.message], tools)
        rows[number].sites.extend([site] if site is not None else [])
    stats.rows += len(rows)
    stats.add_sites(finder)
    return rows


def _windows(wanted: Sequence[TurnSpan], length: int, most: int) -> list[_Window]:
    """Choose what to keep of a conversation that is too long: its last turn, then the wanted turns that are lost."""
    end = max(span.stop for span in wanted)
    windows = [_Window(max(0, end - length), end)]
    for span in wanted:
        window = _Window(max(0, span.stop - length), span.stop)
        lost = not any(one.holds(span) for one in windows)
        if lost and len(windows) < most and window.holds(span):
            windows.append(window)
    return windows


def _masks(learned: Sequence[TurnSpan], windows: Sequence[_Window], length: int) -> list[list[int]]:
    """Return for each window a mask that is 1 on the tokens that carry loss there.

    A turn is learned once: in the latest window that has all of it, or else in one that has its end.
    """
    masks = [[0] * length for _ in windows]
    for span in learned:
        whole = [window.holds(span) for window in windows]
        ending = [window.first < span.stop <= window.end for window in windows]
        if any(ending):
            mask = masks[(whole if any(whole) else ending).index(True)]
            mask[span.start : span.stop] = [1] * (span.stop - span.start)
    return masks
