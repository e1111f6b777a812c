"""Traces as rows of token ids, with their hint sites: made from one conversation at a time, rendered once before
training, and drawn in an order that is shuffled per epoch, split among processes, and resumable.

A step has as many rows as the batch size says, however long a trace is.
"""

from __future__ import annotations

import hashlib
import logging
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jinja2.exceptions import TemplateError

from composer_replication.chat_templates import Tools
from composer_replication.rendering import TurnSpan, render_conversation
from composer_replication.traces import TraceExample, Turn
from composer_replication.trainer.conversations import Conversation
from composer_replication.trainer.sites import HintSite, SiteFinder, error_remarks, is_erring

if TYPE_CHECKING:
    from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator

logger = logging.getLogger(__name__)

_DROPPED = {
    "not_the_students_mistake": "not the student's mistake",
    "outcome": "not the student's mistake",
    "no_next_turn": "no recovery turn",
    "truncated": "truncated",
    "too_long": "too long",
    "hint_not_rendered": "refused by the chat template",
    "header_not_found": "refused by the chat template",
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
        for why, count in finder.counts.items():
            if why in _DROPPED:
                self.sites_dropped[_DROPPED[why]] += count


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


def rendered_traces(examples: Iterable[TraceExample], collator: ComposerDataCollator) -> list[TraceRow]:
    """Return the rows of all traces that teach something; a warning counts those that the chat template refuses.

    Raises:
        ValueError: nothing is left.
    """
    rows: list[TraceRow] = []
    refused: list[str] = []
    for example in examples:
        try:
            rows += [row.compact() for row in collator.rows(example) if row.teaches]
        except ValueError as error:
            refused.append(str(error))
    if not rows:
        why = f": {refused[0]}" if refused else ", no assistant turn to learn from"
        raise ValueError(f"none of the traces can be trained on{why}")
    if refused:
        logger.warning("%d traces are left out, the first because %s", len(refused), refused[0])
    stats = collator.stats
    dropped = ", ".join(f"{count} {reason}" for reason, count in stats.sites_dropped.most_common())
    logger.info(
        "%d rows, %d hinted turns; without a hint: %s", len(rows), stats.sites, dropped or f"{stats.hints_missing}"
    )
    return rows


def rows_digest(rows: Sequence[TraceRow]) -> str:
    """Return a hash of all token ids and of where they carry loss: a run is resumed with the same rows."""
    digest = hashlib.sha256()
    for row in rows:
        for numbers in (row.ids, row.response_mask, *(site.hinted(row.ids) for site in row.sites)):
            digest.update(len(numbers).to_bytes(8, "little"))
            digest.update(array("i", numbers).tobytes())
    return digest.hexdigest()


def check_same_rows(saved: str, own: str) -> None:
    """Raise ValueError unless the digest of a checkpoint's rows equals that of the rows that are here."""
    if saved != own:
        raise ValueError(
            "the checkpoint was made with other traces, or with the same rendered in another way: resume with the same "
            "data and settings, or start a new run"
        )


class TraceBatches:
    """Batches of the rows that have a hinted turn; the others would cost a pass and teach channel 2 nothing.

    Raises:
        ValueError: no trace has a failing turn that gets a hint; the message counts why.
    """

    def __init__(
        self,
        examples: Sequence[TraceExample],
        collator: ComposerDataCollator,
        *,
        batch_size: int,
        seed: int,
        process_index: int = 0,
        num_processes: int = 1,
    ) -> None:
        self._rows = [row for row in rendered_traces(examples, collator) if row.sites]
        if not self._rows:
            stats = collator.stats
            reasons = {**stats.sites_dropped, "without anything for the hint generator to say": stats.hints_missing}
            counted = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
            raise ValueError(
                f"none of the {len(examples)} traces has a failing turn with a hint ({counted or 'no errors'}): "
                "channel 2 has nothing to score in them"
            )
        self._digest = rows_digest(self._rows)
        self._collator = collator
        self._batch_size = batch_size
        self._positions = EpochPositions(
            len(self._rows), seed=seed, process_index=process_index, num_processes=num_processes
        )

    def next_batch(self, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Return the next rows as a batch."""
        batch = self._collator.collate([self._rows[place] for place in self._positions.next(self._batch_size)])
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the position among the rows, and the rows' digest."""
        return {"rows": self._digest, "position": self._positions.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; ValueError if it is of other traces."""
        check_same_rows(state["rows"], self._digest)
        self._positions.load_state_dict(state["position"])


class EpochPositions:
    """An endless walk over `count` examples.

    The epochs' permutations form one stream. Process p of n takes every n-th example of it, from the p-th on: all of
    them together see each example once in an epoch, whether or not the number of examples divides.

    The order is a function of seed and epoch alone, so it does not touch the random state that rollouts are sampled
    with, and a resumed run continues with exactly the next examples.

    Raises:
        ValueError: no examples, or a process outside the range.
    """

    def __init__(self, count: int, *, seed: int, process_index: int = 0, num_processes: int = 1) -> None:
        if count < 1:
            raise ValueError("there must be at least one example to draw from, got none")
        if not 0 <= process_index < num_processes:
            raise ValueError(
                f"process_index must be in 0..{num_processes - 1} (num_processes - 1), got {process_index}"
            )
        self._count = count
        self._seed = seed
        self._process_index = process_index
        self._num_processes = num_processes
        # The position of process 0 in the stream; it holds for all, since all have drawn equally often.
        self._position = 0
        self._order: tuple[int, list[int]] | None = None

    @property
    def epoch(self) -> float:
        """Number of passes over the examples so far."""
        return self._position / self._count

    def next(self, size: int, skipped: frozenset[int] = frozenset()) -> list[int]:
        """The next `size` examples of this process; they may reach into the next epoch.

        Args:
            size: how many.
            skipped: examples that the stream is to be without; the same in every process, and not all of them.

        Raises:
            ValueError: a size below 1, or nothing that is not skipped.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        if len(skipped) >= self._count:
            raise ValueError(f"all {self._count} examples are skipped: there is none to draw")
        places: list[int] = []
        while len(places) < self._num_processes * size:
            place = self._place(self._position)
            self._position += 1
            if place not in skipped:
                places.append(place)
        return places[self._process_index :: self._num_processes]

    def state_dict(self) -> dict[str, int]:
        """The position, and what it is a position in; the same in every process."""
        return {"position": self._position, "seed": self._seed, "count": self._count}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after what was drawn before `state_dict`; the number of processes may differ.

        Raises:
            ValueError: the state is of other examples or another seed, or lacks something.
        """
        mine = self.state_dict()
        if missing := mine.keys() - state.keys():
            raise ValueError(f"the position's state lacks {', '.join(sorted(missing))}")
        for name, what in (("seed", "another seed"), ("count", "another number of examples")):
            if state[name] != mine[name]:
                raise ValueError(
                    f"the position was saved with {what} ({state[name]}, here {mine[name]}): resume with the same data "
                    "and seed, or start a new run"
                )
        if state["position"] < 0:
            raise ValueError(f"a position must not be negative, got {state['position']}")
        self._position = int(state["position"])

    def _place(self, stream_position: int) -> int:
        epoch, place = divmod(stream_position, self._count)
        if self._order is None or self._order[0] != epoch:
            order = list(range(self._count))
            # Seeded by a text, `random` hashes it: neighbouring seeds and epochs have nothing in common.
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = epoch, order
        return self._order[1][place]
