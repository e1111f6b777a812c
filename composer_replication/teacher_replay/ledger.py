"""The ledger: every call to a teacher with its price, in SQLite. It is the cache, and it keeps the budget.

Money is reserved before it is spent. A call is begun in one transaction with the check that its worst case fits in
what is left of the cap, so the cap holds whatever runs at once, in this process or in another on the same file. An
answer and its cost are stored in one transaction before they are used. A call that was begun and never ended (the
process died, the connection was cut) is in doubt: the provider may have billed it. Its worst case stays reserved, also
after the call is repeated, until a user who has seen the bill releases it.

`answers` holds the teachers' turns by key; `attempts` a row for every request that was sent, with what it cost or may
cost; `budgets` the sum of the attempts' charges, so that a check need not add them up.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from composer_replication.teacher_replay.prices import Tokens
from composer_replication.traces import Turn, parse_action

_APPLICATION = 0x43524C47
_VERSION = 2
_PATIENCE, _PAUSE = 600, 0.05
_SCHEMA = """
CREATE TABLE answers (
  key TEXT PRIMARY KEY, teacher TEXT NOT NULL, turn BLOB NOT NULL, finish TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL,
  cost INTEGER NOT NULL, latency REAL NOT NULL, at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE attempts (
  id INTEGER PRIMARY KEY, key TEXT NOT NULL, teacher TEXT NOT NULL, budget TEXT NOT NULL, owner TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'answered', 'free', 'paid', 'doubt', 'released')),
  charge INTEGER NOT NULL CHECK (charge >= 0), reserved INTEGER NOT NULL, at REAL NOT NULL, error TEXT
);
CREATE INDEX attempts_by_key ON attempts (key);
CREATE INDEX attempts_unsettled ON attempts (state) WHERE state IN ('open', 'doubt');
CREATE TABLE budgets (name TEXT PRIMARY KEY, charged INTEGER NOT NULL) WITHOUT ROWID;
"""

Billed = Literal["no", "yes", "maybe"]
"""The billing of a failed request."""


class LedgerError(OSError):
    """The ledger cannot be used; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """A teacher's turn; `finish` is the provider's reason for ending it. Cost in nano-dollars."""

    turn: Turn
    finish: str
    tokens: Tokens
    cost: int
    latency: float


@dataclass(frozen=True)
class Attempt:
    """A call that may be made: its worst case is reserved."""

    id: int
    key: str


@dataclass(frozen=True)
class Busy:
    """Another call is asking the same; its answer will serve both."""


@dataclass(frozen=True)
class NoRoom:
    """The worst case does not fit under the cap. `in_flight` is what calls under way have reserved and may give
    back; `in_doubt` is what stays reserved for calls whose end nobody knows. Nano-dollars."""

    charged: int
    in_flight: int
    in_doubt: int


class Balance(msgspec.Struct):
    """A budget's state: counts of calls, and nano-dollars. `repeated` are calls that were in doubt and then made again:
    the provider may have billed both."""

    answered: int
    spent: int
    in_flight: int
    in_flight_reserved: int
    in_doubt: int
    in_doubt_reserved: int
    repeated: int
    failed: int


class Ledger:
    """A ledger in a file, or in memory if `path` is None. Use one from the thread that made it.

    Raises:
        LedgerError: the file cannot be opened, or is something else.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._is_grouped = False
        with contextlib.ExitStack() as opened:
            try:
                if self.path is not None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                self._db = sqlite3.connect(self.path or ":memory:", timeout=60, isolation_level=None)
                opened.callback(self._db.close)
                self._prepare()
                self._owners = Owners(self.path)
                opened.callback(self._owners.close)
                self.find_lost()
            except (OSError, sqlite3.Error) as error:
                raise error if isinstance(error, LedgerError) else _unusable(self.path, error) from error
            opened.pop_all()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. A call of this process that is still open is in doubt from here on."""
        with contextlib.suppress(sqlite3.Error):
            self._doubt(self._owners.mine)
        self._db.close()
        self._owners.close()

    def answer(self, key: str) -> Answer | None:
        """The stored answer to a call."""
        try:
            row = self._db.execute(
                "SELECT turn, finish, prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens, cost,"
                " latency FROM answers WHERE key = ?",
                (key,),
            ).fetchone()
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error
        if row is None:
            return None
        try:
            return Answer(_turn_of(row[0]), row[1], Tokens(*row[2:6]), row[6], row[7])
        except msgspec.MsgspecError as error:
            raise LedgerError(
                f"{self.path}: the answer {key} is damaged ({error}): restore a copy of the file"
            ) from None

    def begin(
        self, key: str, teacher: str, worst_case: int, *, cap: int, budget: str
    ) -> Answer | Attempt | Busy | NoRoom:
        """Begin a call if it is neither stored nor under way, and if its worst case fits under the cap."""
        stored = self.answer(key)
        if stored is not None:
            return stored
        with self._transaction():
            if (stored := self.answer(key)) is not None:
                return stored
            if self._is_open(key):
                return Busy()
            charged = self.charged(budget)
            if charged + worst_case > cap:
                return NoRoom(charged, self._reserved(budget, "open"), self._reserved(budget, "doubt"))
            cursor = self._db.execute(
                "INSERT INTO attempts (key, teacher, budget, owner, state, charge, reserved, at)"
                " VALUES (?, ?, ?, ?, 'open', ?, ?, ?)",
                (key, teacher, budget, self._owners.mine, worst_case, worst_case, time.time()),
            )
            self._add(budget, worst_case)
            return Attempt(int(cursor.lastrowid or 0), key)

    def settle(self, attempt: Attempt, teacher: str, answer: Answer, worst_repeat: int) -> None:
        """Store an answer and what it cost. `worst_repeat` is what the same call can cost at most, now that its prompt
        is counted: earlier tries that are in doubt need no more than that."""
        tokens = answer.tokens
        counts = (tokens.prompt, tokens.completion, tokens.cached, tokens.cache_write)
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    attempt.key,
                    teacher,
                    _stored(answer.turn),
                    answer.finish,
                    *counts,
                    answer.cost,
                    answer.latency,
                    time.time(),
                ),
            )
            self._charge(attempt.id, "answered", answer.cost)
            doubts = self._db.execute(
                "SELECT id FROM attempts WHERE key = ? AND state = 'doubt' AND charge > ?", (attempt.key, worst_repeat)
            ).fetchall()
            for (doubt,) in doubts:
                self._charge(doubt, "doubt", worst_repeat)

    def fail(self, attempt: Attempt, error: str, billed: Billed, cost: int | None = None) -> None:
        """End a call without an answer: what was not billed is given back, what may have been stays reserved. `cost` is
        what it is known to have cost; without it, "yes" keeps the worst case."""
        state = {"no": "free", "yes": "paid", "maybe": "doubt"}[billed]
        with self._transaction():
            self._charge(attempt.id, state, 0 if billed == "no" else cost, error)

    def find_lost(self) -> int:
        """Put the calls of processes that are gone in doubt; returns how many there were."""
        rows = self._db.execute("SELECT DISTINCT owner FROM attempts WHERE state = 'open'").fetchall()
        return sum(self._doubt(owner) for (owner,) in rows if not self._owners.is_alive(owner))

    def release(self, budget: str | None = None) -> tuple[int, int]:
        """Give back what calls in doubt have reserved, for a user who knows the bill; returns how many, and how much.

        Calls under way keep what they have.
        """
        with self._transaction():
            rows = self._db.execute(
                "SELECT id, charge FROM attempts WHERE state = 'doubt' AND (? IS NULL OR budget = ?)", (budget, budget)
            ).fetchall()
            for identity, _ in rows:
                self._charge(identity, "released", 0)
        return len(rows), sum(charge for _, charge in rows)

    def balance(self, budget: str) -> Balance:
        """Counts and sums of a budget."""
        rows = self._db.execute(
            "SELECT state, COUNT(*), SUM(charge) FROM attempts WHERE budget = ? GROUP BY state", (budget,)
        )
        counts = defaultdict(lambda: (0, 0), {state: (count, charge) for state, count, charge in rows})
        (repeated,) = self._db.execute(
            "SELECT COUNT(*) FROM attempts AS lost WHERE budget = ? AND state IN ('doubt', 'released') AND EXISTS"
            " (SELECT 1 FROM attempts WHERE key = lost.key AND id > lost.id)",
            (budget,),
        ).fetchone()
        answered, paid, in_flight, doubt = (counts[state] for state in ("answered", "paid", "open", "doubt"))
        return Balance(
            answered=answered[0],
            spent=answered[1] + paid[1],
            in_flight=in_flight[0],
            in_flight_reserved=in_flight[1],
            in_doubt=doubt[0],
            in_doubt_reserved=doubt[1],
            repeated=repeated,
            failed=counts["free"][0] + paid[0],
        )

    def _prepare(self) -> None:
        self._db.execute("PRAGMA foreign_keys = ON")
        tables = self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        application, version = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if tables and application != _APPLICATION:
            raise LedgerError(f"{self.path} is a database, but no replay ledger: give another path")
        if tables and not 1 <= version <= _VERSION:
            raise LedgerError(
                f"{self.path} is a ledger of version {version}, this is for {_VERSION}: give another path"
            )
        self._write_ahead()
        # A reservation must be on the disk before the money is gone, also if the machine loses its power.
        self._db.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            if not self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._db.execute(f"PRAGMA user_version = {_VERSION}")
            elif self._db.execute("PRAGMA user_version").fetchone()[0] == 1:  # nobody else was faster
                self._migrate()

    def _migrate(self) -> None:
        """Make turns of the texts that version 1 stored; keys, attempts and budgets stay as they are."""
        self._db.create_function("as_turn", 1, lambda text: _stored(_turn_of(text)), deterministic=True)
        self._db.execute("ALTER TABLE answers RENAME COLUMN text TO turn")
        self._db.execute("UPDATE answers SET turn = as_turn(turn)")
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _write_ahead(self) -> None:
        """Switch to a write-ahead log; SQLite does not wait for another process that is doing the same."""
        for _ in range(_PATIENCE):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                time.sleep(_PAUSE)
        raise LedgerError(f"{self.path} is locked by another program: end it, or give another path")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Keep all that is done within, or nothing of it, at the cost of one wait for the disk. An error must not be
        caught within: what was done before it is lost with it."""
        with self._committed():
            self._is_grouped = True
            try:
                yield
            finally:
                self._is_grouped = False

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if not self._is_grouped:
            with self._committed():
                self._db.execute("BEGIN IMMEDIATE")
                yield
            return
        if not self._db.in_transaction:
            # Only now: a group that reads what is stored locks nobody out.
            self._db.execute("BEGIN IMMEDIATE")
        yield

    @contextmanager
    def _committed(self) -> Iterator[None]:
        """Commit at the end, or roll back; errors of the database become those of the ledger."""
        try:
            try:
                yield
                if self._db.in_transaction:
                    self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise LedgerError(
                f"{self.path} cannot be written ({error}): set that right, and run again; what it holds is kept"
            ) from error

    def _is_open(self, key: str) -> bool:
        """Return whether a live process is asking this; calls of dead processes are put in doubt."""
        owners = self._db.execute("SELECT owner FROM attempts WHERE key = ? AND state = 'open'", (key,)).fetchall()
        alive = [owner for (owner,) in owners if self._owners.is_alive(owner)]
        if owners and not alive:
            self._db.execute("UPDATE attempts SET state = 'doubt' WHERE key = ? AND state = 'open'", (key,))
        return bool(alive)

    def _doubt(self, owner: str) -> int:
        """Put the open calls of an owner in doubt: what they have reserved stays."""
        return self._db.execute(
            "UPDATE attempts SET state = 'doubt' WHERE state = 'open' AND owner = ?", (owner,)
        ).rowcount

    def _charge(self, attempt: int, state: str, charge: int | None, error: str | None = None) -> None:
        """Give an attempt its state and its charge (None: the one it has), and the budget the difference."""
        budget, before = self._db.execute("SELECT budget, charge FROM attempts WHERE id = ?", (attempt,)).fetchone()
        after = before if charge is None else charge
        self._db.execute(
            "UPDATE attempts SET state = ?, charge = ?, error = coalesce(?, error) WHERE id = ?",
            (state, after, error, attempt),
        )
        self._add(budget, after - before)

    def charged(self, budget: str) -> int:
        """Return the sum of what is spent and reserved."""
        row = self._db.execute("SELECT charged FROM budgets WHERE name = ?", (budget,)).fetchone()
        return 0 if row is None else int(row[0])

    def _reserved(self, budget: str, state: str) -> int:
        return int(
            self._db.execute(
                "SELECT coalesce(SUM(charge), 0) FROM attempts WHERE state = ? AND budget = ?", (state, budget)
            ).fetchone()[0]
        )

    def _add(self, budget: str, amount: int) -> None:
        self._db.execute(
            "INSERT INTO budgets VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET charged = charged + ?",
            (budget, amount, amount),
        )


class StoredAnswers:
    """The keys of a ledger's answers, read without changing the file; none if it does not exist.

    Raises:
        LedgerError: the file is something else.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._db: sqlite3.Connection | None = None
        if self._path is not None and self._path.exists():
            # Even a reader of a write-ahead log makes files beside it, unless it knows that nobody writes.
            is_in_use = self._path.with_name(f"{self._path.name}-wal").exists()
            address = f"{self._path.resolve().as_uri()}?{'mode=ro' if is_in_use else 'immutable=1'}"
            try:
                self._db = sqlite3.connect(address, uri=True)
                self._db.execute("SELECT key FROM answers LIMIT 1")
            except sqlite3.Error as error:
                raise _unusable(self._path, error) from error

    def __contains__(self, key: str) -> bool:
        if self._db is None:
            return False
        return self._db.execute("SELECT 1 FROM answers WHERE key = ?", (key,)).fetchone() is not None

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()


def _stored(turn: Turn) -> bytes:
    return msgspec.json.encode(turn)


def _turn_of(stored: bytes | str) -> Turn:
    """Return a stored turn. Version 1 stored texts, and a process of it that has the file open still does."""
    return parse_action(stored) if isinstance(stored, str) else msgspec.json.decode(stored, type=Turn)


def _unusable(path: Path | None, error: Exception) -> LedgerError:
    what = getattr(error, "strerror", None) or str(error)
    return LedgerError(f"{path} cannot be used as a replay ledger ({what}): give another path; nothing was changed")


class Owners:
    """The processes that share a ledger: each holds a lock on a file of its own until it ends, however it ends.

    The lock is the kernel's: a process that is killed releases it, one that is only slow does not, and no clock is
    involved.
    """

    def __init__(self, ledger: Path | None) -> None:
        self.mine = uuid.uuid4().hex
        self._folder = None if ledger is None else ledger.with_name(f"{ledger.name}-owners")
        self._descriptor: int | None = None
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            self._descriptor = os.open(self._folder / self.mine, os.O_CREAT | os.O_RDWR, 0o600)
            _lock(self._descriptor)

    def is_alive(self, owner: str) -> bool:
        """Return whether the process with this id still runs."""
        if owner == self.mine:
            return True
        if self._folder is None:
            return False
        path = self._folder / owner
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if not _lock(descriptor):
                return True
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of the lock."""
        if self._descriptor is not None and self._folder is not None:
            (self._folder / self.mine).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> bool:
    """Lock a file if nobody else has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
