"""A conversation as windows that fit into rows: the whole of it, or several shorter lists of its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.rendering import RenderedConversation, TurnSpan
from composer_replication.traces import Message
from composer_replication.trainer.shortened import NEARLY, LongConversation, Shortened


@dataclass(frozen=True)
class Window:
    """A part of a conversation as ids.

    `turns` has its assistant turns by their message in the whole conversation. `kept` are the messages that it shows,
    all from `first` on without a gap.
    """

    ids: list[int]
    turns: dict[int, TurnSpan]
    first: int
    kept: set[int]

    @classmethod
    def of(cls, shown: Shortened, rendered: RenderedConversation) -> Window:
        """Return the rendering of a shortened list."""
        turns = {shown.place(turn.message): turn for turn in rendered.turns if turn.message is not None}
        return cls(rendered.ids, turns, shown.first, shown.kept())

    def length(self, hints: Mapping[int, int]) -> int:
        """The tokens of the row or of its longest hinted context; `hints` has the tokens of the hints by message."""
        hinted = (turn.stop + hints[message] for message, turn in self.turns.items() if message in hints)
        return max(len(self.ids), *hinted, 0)


@dataclass
class Windows:
    """The windows of a conversation, and what is in none of them.

    `too_long` are the turns that do not fit beside system prompt, tools and task, with the tokens that they would need;
    `hints_too_long` those that only their hint makes too long. `left_out` are the messages that no window shows.
    """

    windows: list[Window]
    shortened: bool = False
    too_long: dict[int, int] = field(default_factory=dict)
    hints_too_long: set[int] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)
    tokens_left_out: int = 0

    def best(self, message: int) -> int | None:
        """Return the number of the window that shows the most of what came before a turn; None: none shows it."""
        holding = [number for number, window in enumerate(self.windows) if message in window.turns]
        return min(holding, key=lambda number: self.windows[number].first, default=None)


def windows_of(
    tokenizer: Any,
    messages: Sequence[Message],
    rendered: RenderedConversation,
    render: Callable[[Sequence[Message]], RenderedConversation],
    wanted: Sequence[int],
    hints: Mapping[int, int],
    *,
    limit: int,
    most: int,
) -> Windows:
    """Return the whole conversation if it fits, hinted contexts included, and else windows that do.

    Args:
        tokenizer: measures texts.
        messages: the whole conversation.
        rendered: the whole as ids.
        render: renders shorter lists like the whole.
        wanted: the turns to show, by message: in this order, one that no window shows yet together with the message
            before it gets a window that ends with it.
        hints: the tokens of the hints that go before turns, by message.
        limit: the most tokens of a row, and of a hinted context.
        most: the most windows.
    """
    whole = Window.of(Shortened(list(messages), 0, 0, len(messages)), rendered)
    if whole.length(hints) <= limit:
        return Windows([whole])
    long = LongConversation.of_rendering(tokenizer, messages, rendered)
    hints = dict(hints)

    def fit(message: int) -> Window | None:
        """Return the longest window that ends with a turn."""
        for shown in long.windows(message + 1, limit - hints.get(message, 0)):
            try:
                window = Window.of(shown, render(shown.messages))
            except ValueError:  # a template may refuse what one window shows, and take the next
                continue
            if window.length(hints) <= limit:
                return window
        return None

    made = Windows([])
    for message in list(hints):
        if long.least(message + 1) + hints[message] > limit - NEARLY and fit(message) is None:
            made.hints_too_long.add(message)
            del hints[message]
    if whole.length(hints) <= limit:
        made.windows = [whole]
        return made
    made.shortened = True
    for message in dict.fromkeys(wanted):
        held = [window.first for window in made.windows if message in window.turns]
        if any(first < message or first == long.lead for first in held):
            continue
        full = len(made.windows) == most
        window = None if full else fit(message)
        if window is not None and (not held or window.first < message):
            made.windows.append(window)
        elif not held and (not full or long.least(message + 1) > limit):
            made.too_long[message] = long.least(message + 1)
    made.left_out = set(range(len(messages))).difference(*(window.kept for window in made.windows))
    made.tokens_left_out = long.tokens(made.left_out)
    return made
