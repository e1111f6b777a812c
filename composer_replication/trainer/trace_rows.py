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
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from composer_replication.chat_templates import Tools
from composer_replication.rendering import render_conversation
from composer_replication.traces import TraceExample, Turn
from composer_replication.trainer.conversations import Conversation
from composer_replication.trainer.sites import HintSite, SiteFinder, error_remarks, is_erring
from composer_replication.trainer.windows import Windows, windows_of

if TYPE_CHECKING:
    from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator

logger = logging.getLogger(__name__)

TOO_LONG = "too long"
BEYOND = "beyond max_windows"
_DROPPED = {
    "not_the_students_mistake": "not the student's mistake",
    "outcome": "not the student's mistake",
    "no_next_turn": "no recovery turn",
    "no_window": BEYOND,
    "too_long": TOO_LONG,
    "too_many": "above max_hinted_turns",
    "hint_not_rendered": "refused by the chat template",
    "header_not_found": "refused by the chat template",
}
"""The reasons of `sites` in the words of `RowStats.sites_dropped`."""


@dataclass(frozen=True)
class TraceRow:
    """A conversation as the student sees it. `response_mask` is 1 on the tokens that carry loss, `session` the number
    of its trace."""

    ids: Sequence[int]
    response_mask: Sequence[int]
    sites: list[HintSite]
    reward: float = 0.0
    session: int = 0

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
    recovery turn", "too long" (the turn and its hint do not fit into a row with system prompt, tools and task), "beyond
    max_windows" (its turn is in no row), "above max_hinted_turns", "refused by the chat template". `hints_missing` are
    those that the hint generator had nothing to say about. `hint_role_used` counts the hints by their role.

    `truncated_rows` conversations were too long and were shortened; `messages_left_out` messages of them, of about
    `truncated_tokens` tokens, are in no row. `turns_dropped` counts the turns to learn among these by reason: "too
    long", "beyond max_windows". `least_length` is about the shortest row that would hold one that is too long.
    """

    rows: int = 0
    sites: int = 0
    sites_dropped: Counter[str] = field(default_factory=Counter)
    hints_missing: int = 0
    hint_role_used: Counter[str] = field(default_factory=Counter)
    truncated_rows: int = 0
    truncated_tokens: int = 0
    messages_left_out: int = 0
    turns_dropped: Counter[str] = field(default_factory=Counter)
    least_length: int | None = None

    def add_sites(self, finder: SiteFinder, rows: Sequence[TraceRow]) -> None:
        """Count what became of one conversation's errors."""
        sites = [site for row in rows for site in row.sites]
        self.sites += len(sites)
        self.hint_role_used.update(site.role for site in sites)
        self.hints_missing += finder.counts["no_hint"]
        for why, count in finder.counts.items():
            if why in _DROPPED and count:
                self.sites_dropped[_DROPPED[why]] += count

    def add_length(self, made: Windows, left_out: int) -> None:
        """Count what one conversation lost to the length of rows."""
        self.truncated_rows += made.shortened
        self.messages_left_out += left_out
        self.truncated_tokens += made.tokens_left_out
        lengths = [*made.too_long.values(), *([] if self.least_length is None else [self.least_length])]
        self.least_length = min(lengths, default=None)

    def nothing_fits(self, length: int) -> str:
        """Say what would have to fit into a row of so many tokens; empty if no turn was too long."""
        if self.least_length is None:
            return ""
        return (
            f"system prompt, tools, task and the shortest turn take about {self.least_length} tokens, and a row holds "
            f"{length}: raise max_seq_len (data.max_length)"
        )


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

    One that is too long, hinted contexts included, becomes windows: system prompt, tools and task, and the latest
    messages that fit. The first window ends with the last turn to learn. Further ones, if they are allowed, end with
    the latest errors that would be lost, then with the latest turns. A turn is learned once, in the window that shows
    the most of what came before it.

    Raises:
        ValueError: the chat template refuses the conversation, or cannot be aligned.
    """
    messages, render = conversation.messages, partial(render_conversation, tokenizer, tools=tools)
    rendered = render(messages)
    places = [span.message for span in rendered.turns if span.message is not None]
    shown = [None if (index := conversation.turns[place]) is None else turns[index] for place in places]
    learns = set(conversation.learned)
    learned = [number for number, place in enumerate(places) if place in learns]
    finder = SiteFinder(
        tokenizer,
        config.hint_generator if config.enable_sdpo else None,
        config.sdpo_target,
        config.hint_role,
        max_turns=config.max_hinted_turns,
        strip_attempt=config.strip_attempt,
    )
    calls = [[] if turn is None else turn.tool_calls for turn in shown]
    sites: dict[int, HintSite] = {}
    for hint in finder.hints(finder.by_turn(error_remarks(shown)), learned, calls):
        site = finder.place(hint, [rendered.turns[hint.turn]], messages[: places[hint.turn]], tools)
        if site is not None:
            sites[places[hint.turn]] = site
    imitated = {places[number] for number in learned if config.train_on_errors or not is_erring(shown[number])}
    latest = sorted({*imitated, *sites}, reverse=True)
    made = windows_of(
        tokenizer,
        messages,
        rendered,
        render,
        wanted=[*latest[:1], *(place for place in latest if place in sites), *latest],
        hints={place: len(site.hint_ids) for place, site in sites.items()},
        limit=config.max_seq_len,
        most=config.max_windows,
    )
    masks = [[0] * len(window.ids) for window in made.windows]
    rows = [TraceRow(window.ids, mask, []) for window, mask in zip(made.windows, masks, strict=True)]
    for place in reversed(latest):
        if place in made.hints_too_long:
            finder.counts["too_long"] += 1
            del sites[place]
        number = made.best(place)
        if number is None:
            stats.turns_dropped[TOO_LONG if place in made.too_long else BEYOND] += 1
            finder.counts["no_window"] += place in sites
            continue
        turn = made.windows[number].turns[place]
        if place in imitated:
            masks[number][turn.start : turn.stop] = [1] * (turn.stop - turn.start)
        if place in sites:
            rows[number].sites.append(sites[place].at(turn))
    stats.rows += len(rows)
    # Placeholders are not the log's.
    stats.add_length(made, sum(conversation.turns[place] is not None for place in made.left_out))
    stats.add_sites(finder, rows)
    return rows


def rendered_traces(examples: Iterable[TraceExample], collator: ComposerDataCollator) -> list[TraceRow]:
    """Return the rows of all traces that teach something; a warning counts those that the chat template refuses.

    Raises:
        ValueError: nothing is left.
    """
    rows: list[TraceRow] = []
    refused: list[str] = []
    for number, example in enumerate(examples):
        try:
            rows += [replace(row.compact(), session=number) for row in collator.rows(example) if row.teaches]
        except ValueError as error:
            refused.append(str(error))
    stats = collator.stats
    if not rows:
        why = refused[0] if refused else stats.nothing_fits(collator.config.max_seq_len)
        raise ValueError(f"none of the traces can be trained on: {why or 'no assistant turn to learn from'}")
    if refused:
        logger.warning("%d traces are left out, the first because %s", len(refused), refused[0])
    if stats.truncated_rows:
        lost = ", ".join(f"{count} {reason}" for reason, count in stats.turns_dropped.items())
        logger.warning(
            "%d conversations are longer than max_seq_len: %d of their messages (%d tokens) are in no row; "
            "turns to learn among these: %s",
            *(stats.truncated_rows, stats.messages_left_out, stats.truncated_tokens, lost or "none"),
        )
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
        self.rows = [row for row in rendered_traces(examples, collator) if row.sites]
        if not self.rows:
            stats = collator.stats
            reasons = {**stats.sites_dropped, "without anything for the hint generator to say": stats.hints_missing}
            counted = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
            raise ValueError(
                f"none of the {len(examples)} traces has a failing turn with a hint ({counted or 'no errors'}): "
                "channel 2 has nothing to score in them"
            )
        self._digest = rows_digest(self.rows)
        self._collator = collator
        self._batch_size = batch_size
        self._positions = EpochPositions(
            len(self.rows), seed=seed, process_index=process_index, num_processes=num_processes
        )

    def next_batch(self, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Return the next rows as a batch."""
        batch = self._collator.collate([self.rows[place] for place in self._positions.next(self._batch_size)])
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
