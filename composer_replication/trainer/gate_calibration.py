"""The hint gate's threshold: how much hints that belong to other sessions change a turn (AdviSD's rule).

Any text in the context changes what a model predicts. So turns are measured, once before training, with hints that say
nothing about them: those of other traces, or of rollouts of other prompts, in the place of their own. A percentile of
the absolute values of the turns' mean changes is the threshold, and is kept for the whole run.

Traces are all there when a trainer is built. Rollouts come with the generations: what the first one lacks is measured
in the next, and until then the gate does without a threshold.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from composer_replication.trainer.sites import HintSite

if TYPE_CHECKING:
    from composer_replication.trainer.data_collator import ComposerDataCollator
    from composer_replication.trainer.trace_rows import TraceRow

logger = logging.getLogger(__name__)


class HintedTurn(NamedTuple):
    """A turn with a hint: the session that it is from, the number of its row, and the hint in its place."""

    session: str
    row: int
    site: HintSite

    def told(self) -> Told:
        """What other processes need to know of its own hint."""
        return self.session, self.site.hint, self.site.hint_ids


Told: TypeAlias = tuple[str, str, tuple[int, ...]]
"""A session, a hint that it has, and the hint's ids."""


class _Hint(NamedTuple):
    """A hint's ids, and the sessions that have it: it is foreign to turns of all others."""

    ids: tuple[int, ...]
    sessions: set[str]


class GateCalibration:
    """The measurements so far and, once there are enough, the threshold.

    Args:
        wanted: the number of measurements.
        percentile: the share of them that is to lie below the threshold.
        seed: of the draw, which leaves the global random state alone.
    """

    def __init__(self, wanted: int, percentile: float, seed: str) -> None:
        self.threshold: float | None = None
        self._wanted = wanted
        self._percentile = percentile
        self._seed = seed
        self._changes: list[float] = []
        self._hints: dict[str, _Hint] = {}
        self._is_told = False

    def hear(self, told: Iterable[Told]) -> None:
        """Take in the hints of turns, wherever the turns are: they are foreign to those of other sessions."""
        for session, text, ids in told:
            self._hints.setdefault(text, _Hint(ids, set())).sessions.add(session)

    def draw(
        self, turns: Sequence[HintedTurn], *, max_length: int | None = None, process: int = 0, processes: int = 1
    ) -> list[HintedTurn]:
        """Return turns with foreign hints in place of their own, as many as this process still has to measure.

        Every turn gets one hint before any gets a second, and none twice.

        Args:
            turns: with their own hints.
            max_length: the longest hinted context in tokens; None: no limit.
            process: the number of this one: each draws for itself.
            processes: how many share the work.
        """
        dice = random.Random(f"{self._seed}/{len(self._changes)}{f'/{process}' if process else ''}")
        self.hear(turn.told() for turn in turns)
        missing = -(-(self._wanted - len(self._changes)) // processes)

        def with_foreign_hints(turn: HintedTurn) -> Iterator[HintedTurn]:
            site = turn.site
            room = None if max_length is None else max_length - site.spans[-1][1]
            for text, hint in dice.sample(list(self._hints.items()), len(self._hints)):
                if turn.session not in hint.sessions and (room is None or len(hint.ids) <= room):
                    yield turn._replace(site=replace(site, hint_ids=hint.ids, hint=text))

        sessions = {turn.session for turn in turns}
        strangers = {one for one in sessions if any(one not in hint.sessions for hint in self._hints.values())}
        able = [turn for turn in turns if turn.session in strangers]
        waiting = [with_foreign_hints(turn) for turn in dice.sample(able, len(able))]
        drawn: list[HintedTurn] = []
        while waiting and len(drawn) < missing:
            asked, waiting = waiting, []
            for one in asked:
                found = next(one, None) if len(drawn) < missing else None
                if found is not None:
                    drawn.append(found)
                    waiting.append(one)
        # Enough for later turns: a run that finds no foreign hints must not collect for ever.
        self._hints = dict(list(self._hints.items())[-self._wanted :])
        return drawn

    def add(self, changes: Sequence[float], *, is_all: bool = False) -> None:
        """Add measurements, and set the threshold if there are enough of them, or if these are all there will be.

        Raises:
            ValueError: one that is not finite.
        """
        if odd := [change for change in changes if not math.isfinite(change)]:
            raise ValueError(
                f"the hint gate cannot be calibrated: a foreign hint changes a turn by {odd[0]} nats, so "
                "the teacher's log-probabilities are not finite; check the model's weights and its precision"
            )
        self._changes += changes
        if len(self._changes) < self._wanted and not is_all:
            logger.log(
                logging.INFO if self._is_told else logging.WARNING,
                "the hint gate is calibrated with %d foreign hints, %d were measured so far: until there are enough, "
                "only min_gap and drop_conflicts decide",
                self._wanted,
                len(self._changes),
            )
            self._is_told = True
            return
        self.threshold = float(torch.tensor(self._changes, dtype=torch.float64).quantile(self._percentile))
        self._hints = {}
        logger.info(
            "hint gate: of %d foreign hints, %g%% change a turn's mean log-probability by at most %.4g; a hint must "
            "change it by more",
            len(self._changes),
            100 * self._percentile,
            self.threshold,
        )

    def state_dict(self) -> dict[str, Any]:
        """The threshold, or what there is of it, as JSON takes it."""
        hints = [[text, hint.ids, sorted(hint.sessions)] for text, hint in self._hints.items()]
        return {"threshold": self.threshold, "changes": self._changes, "hints": hints}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave: a threshold that was measured holds for the rest of the run."""
        self.threshold = state["threshold"]
        self._changes = list(state["changes"])
        self._hints = {text: _Hint(tuple(ids), set(sessions)) for text, ids, sessions in state["hints"]}


Measure = Callable[[Sequence[HintedTurn]], list[float]]
"""From turns with hints to the absolute values of their mean changes."""


def measured_in_parts(measure: Measure, turns: Sequence[HintedTurn], size: int) -> list[float]:
    """Measure a few turns at a time."""
    return [change for start in range(0, len(turns), size) for change in measure(turns[start : start + size])]


class RowCalibration:
    """The calibration of a gate on the rows of traces: drawn when a trainer is built, measured before its first step.

    Args:
        calibration: that of the channel.
        rows: with their hint sites.
        collator: makes batches of them.
        size: rows of a pass.

    Raises:
        ValueError: no turn has a foreign hint.
    """

    def __init__(
        self, calibration: GateCalibration, rows: Sequence[TraceRow], collator: ComposerDataCollator, *, size: int
    ) -> None:
        turns = [HintedTurn(str(row.session), number, site) for number, row in enumerate(rows) for site in row.sites]
        self._drawn = calibration.draw(turns, max_length=collator.config.max_seq_len)
        if not self._drawn:
            sessions, texts = len({turn.session for turn in turns}), len({turn.site.hint for turn in turns})
            raise ValueError(
                f"the gate's calibrate needs different hints of at least two traces, got {texts} of {sessions}: give "
                "more traces with failing turns, or leave calibrate out"
            )
        self._calibration = calibration
        self._rows = rows
        self._collator = collator
        self._size = size

    def measure(self, changes_of: Callable[[dict[str, torch.Tensor]], list[float]]) -> None:
        """Set the threshold, unless the run already has one; `changes_of` measures a batch of the collator's."""
        if self._calibration.threshold is None:

            def measured(turns: Sequence[HintedTurn]) -> list[float]:
                rows = [replace(self._rows[turn.row], sites=[turn.site]) for turn in turns]
                return changes_of(self._collator.collate(rows))

            self._calibration.add(measured_in_parts(measured, self._drawn, self._size), is_all=True)
