"""How ranks find each other: the id of a run, its beginning, and ranks that come later.

A run begins when all ranks have said hello, each with the round that it has reached. Whoever is behind, or has other
parameters, takes over the state of the one that is furthest. After that, a rank that comes (back) asks to join; the
ranks that are there write their state for it when they next can.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from composer_replication.diloco.serverless.place import Pauses, Place, listed
from composer_replication.diloco.serverless.store import ObjectStore
from composer_replication.diloco.state_file import State, load_state

logger = logging.getLogger(__name__)
_LATE = "late"
_BEGIN_AGAIN = "to begin the run again with all its ranks, from their checkpoints, give it another run_id"


def agree_on_run_id(store: ObjectStore, rank: int, world_size: int, *, timeout_s: float, poll_interval_s: float) -> str:
    """Agree on a fresh id, so that no object of an earlier run in the same place is ever read.

    Rank 0 makes the id. The others call with a word that nobody has used before, and believe only an answer to that
    word; rank 0 has finished when all of them have written under the new id. A rank that is restarted would wait in
    vain: who restarts ranks gives them a `run_id`.

    Raises:
        TimeoutError: a rank is missing.
    """
    deadline, pauses = time.monotonic() + timeout_s, Pauses(poll_interval_s)

    def pause(missing: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank} of {world_size} waited {timeout_s:g} s for {missing} in {store.uri}")
        pauses.pause()

    if rank:
        word = uuid.uuid4().hex
        store.put(f"call_{rank:04d}", word.encode())
        while (answer := store.get(f"answer_{rank:04d}_{word}")) is None:
            pause("rank 0 to begin the run (a rank that is restarted needs the run_id of its run)")
        run_id = answer.decode()
        store.put(f"{run_id}/ready_{rank:04d}", b"{}")
        return run_id
    run_id = uuid.uuid4().hex[:12]
    answered: dict[int, bytes] = {}
    missing = set(range(1, world_size))
    while missing:
        for other in sorted(missing):
            word_of_other = store.get(f"call_{other:04d}")
            if word_of_other is not None and answered.get(other) != word_of_other:
                store.put(f"answer_{other:04d}_{word_of_other.decode()}", run_id.encode())
                answered[other] = word_of_other
            if store.get(f"{run_id}/ready_{other:04d}") is not None:
                missing.discard(other)
        if missing:
            pause(listed(missing))
    store.delete([f"call_{other:04d}" for other in answered])
    store.delete([f"answer_{other:04d}_{word.decode()}" for other, word in answered.items()])
    store.delete([f"{run_id}/ready_{other:04d}" for other in answered])
    return run_id


def begin(
    place: Place,
    round_id: int,
    digest: str,
    state: Callable[[], bytes],
    *,
    has_average: bool,
    min_participants: int | None,
    grace_s: float,
) -> tuple[State | None, bool]:
    """Begin a run together, or join one that has begun.

    Returns:
        The state to take over, or None to go on with one's own; and whether the average of a round in flight counts.
        It does if all have that of the same round: a rank without it would make the round again, alone.

    Args:
        place: of the run.
        round_id: the round that this rank has reached.
        digest: of its state; equal for equal states.
        state: makes its state, for ranks that are behind.
        has_average: whether this rank's checkpoint has the average of a round that it did not finish.
        min_participants: how many suffice to begin, after `grace_s`; None: all.
        grace_s: how long to wait for the others after that.

    Raises:
        TimeoutError: ranks are missing, or nobody answers.
    """
    hello = {"round": round_id, "digest": digest, "has_average": has_average, "word": uuid.uuid4().hex}
    if place.read(place.name("opened")) is None:
        place.write(place.name("hello", place.rank), hello)
    opened = _opened(place, min_participants, grace_s, state)
    # The hello of an earlier process of this rank does not count: the run may be rounds ahead.
    if opened["hellos"].get(str(place.rank)) != hello:
        return ask_to_join(place), False
    source = opened["hellos"][str(opened["source"])]
    common = source["round"], source["digest"]
    counts = all(one["has_average"] and (one["round"], one["digest"]) == common for one in opened["hellos"].values())
    if common == (round_id, digest):
        return None, counts
    logger.warning(
        "rank %d takes over the state of rank %d: it was in round %d with %s parameters",
        place.rank,
        opened["source"],
        round_id,
        "other" if source["round"] == round_id else "older",
    )
    opening = place.name("opening", opened["source"])
    return place.wait_for(lambda: _undamaged(place, opening), lambda: f"the state of rank {opened['source']}"), False


def _undamaged(place: Place, name: str) -> State | None:
    """The state that another rank wrote; None if there is none, or it did not arrive whole."""
    data = place.store.get(name)
    try:
        return None if data is None else load_state(data)
    except ValueError as error:
        logger.warning("%s: %s is read again: %s", place.here(), name, error)
        return None


def _opened(place: Place, min_participants: int | None, grace_s: float, state: Callable[[], bytes]) -> dict[str, Any]:
    """Wait until the run is opened, by the rank that is furthest, or by the next one if it is silent."""
    hellos: dict[int, dict[str, Any]] = {}
    enough_since = complete_since = 0.0

    def in_order() -> list[int]:
        return sorted(hellos, key=lambda rank: (-hellos[rank]["round"], rank))

    def look() -> dict[str, Any] | None:
        nonlocal enough_since, complete_since
        if (opened := place.read(place.name("opened"))) is not None:
            return dict(opened)
        for rank in range(place.world_size):
            if rank not in hellos and (hello := place.read(place.name("hello", rank))) is not None:
                hellos[rank] = hello
        now = time.monotonic()
        if len(hellos) < place.world_size:
            if min_participants is None or len(hellos) < min_participants:
                return None
            enough_since = enough_since or now
            if now < enough_since + grace_s:
                return None
        complete_since = complete_since or now
        order = in_order()
        turn = order.index(place.rank)
        # Those before it are taken for dead when its turn comes; one that was only slow joins later.
        counted = {rank: hellos[rank] for rank in order[turn:]}
        if turn and (
            min_participants is None or len(counted) < min_participants or now < complete_since + turn * grace_s
        ):
            return None
        if len({(hello["round"], hello["digest"]) for hello in counted.values()}) > 1:
            place.store.put(place.name("opening", place.rank), state())
        opening = {"source": place.rank, "hellos": counted}
        if place.store.can_create:
            place.store.create(place.name("opened"), json.dumps(opening).encode())
        else:
            place.write(place.name("opened"), opening)
        return None

    def missing() -> str:
        if absent := set(range(place.world_size)) - set(hellos):
            return f"{listed(absent)} to begin (min_participants lets a run begin without)"
        return f"{listed(in_order()[:1])}, which was there, to begin the run"

    return place.wait_for(look, missing)


def ask_to_join(place: Place) -> State:
    """Ask for the state of a run that is under way, and wait for it.

    Raises:
        TimeoutError: nobody answers.
        RuntimeError: all ranks ask, so nobody has a state.
    """
    word = uuid.uuid4().hex
    welcome = place.name("welcome", f"{place.rank:04d}_{word}")
    request = place.name("join", place.rank)

    def look() -> State | None:
        state = _undamaged(place, welcome)
        # The answer to an earlier process of this rank may have taken the request away.
        if state is None and place.read(request) != word:
            place.write(request, word)
        if state is None and all(_asks(place, rank) for rank in place.others):
            raise RuntimeError(f"{place.here()}: all ranks ask to join, and none is left to answer: {_BEGIN_AGAIN}")
        return state

    state = place.wait_for(look, lambda: f"a rank that lets it join ({_BEGIN_AGAIN})")
    place.store.delete([welcome, request])
    return state


def _asks(place: Place, rank: int) -> bool:
    return place.read(place.name("join", rank)) not in (None, _LATE)


def say_late(place: Place) -> None:
    """Say that this rank will take part in the next rounds, if they wait for it a little."""
    place.write(place.name("join", place.rank), _LATE)


def who_asks(place: Place, ranks: Iterable[int]) -> list[int]:
    """Those of `ranks` that ask to take part; the notes of those that are only late have served their purpose then."""
    notes = {rank: place.read(place.name("join", rank)) for rank in sorted(ranks)}
    place.store.delete([place.name("join", rank) for rank, note in notes.items() if note == _LATE])
    return [rank for rank, note in notes.items() if note is not None]


def welcome(place: Place, rank: int, state: Callable[[], bytes]) -> None:
    """Write the state for a rank, if it asks to join."""
    word = place.read(place.name("join", rank))
    if word in (None, _LATE):
        return
    place.store.put(place.name("welcome", f"{rank:04d}_{word}"), state())
    place.store.delete([place.name("join", rank)])
    logger.info("rank %d lets rank %d join run %s", place.rank, rank, place.run_id)
