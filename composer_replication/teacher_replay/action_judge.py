"""A judge of agreement: a model that decides whether two actions are the same, paid from a budget like a teacher."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from composer_replication.teacher_replay.calls import Caller, CallRules, LedgerThread
from composer_replication.teacher_replay.client import TeacherClient
from composer_replication.teacher_replay.prices import cap_of
from composer_replication.teacher_replay.prompts import KnownPrompts, PromptWriter, new_redactor
from composer_replication.teacher_replay.teachers import RemoteTeacher
from composer_replication.traces import Message, render_action

_T = TypeVar("_T")

PROMPT = """\
You compare two next actions of a coding agent, proposed for the same situation. They are the same if carrying out \
either would change the same things in the same way, or gather the same information; wording, formatting and order \
do not matter, and neither does the text around identical tool calls. Answer with one word: SAME or DIFFERENT."""
# Longer actions are never near misses.
_LONGEST_ACTION = 20_000
# Consecutive failures after which the judge is not asked any more.
_GIVE_UP_AFTER = 8


class ActionJudge:
    """Asks a model whether two actions are the same. Use it as a context manager, from one thread.

    Answers are kept in the ledger: the same question is paid for once. What is sent is redacted. A judge that can only
    fail is not asked again; `failed` counts questions without an answer, `no_room` those that the budget did not allow.

    Args:
        teacher: the judge.
        max_total_usd: the cap on what `budget` may cost in this ledger.
        ledger: the SQLite file; None keeps answers in memory.
    """

    def __init__(
        self,
        teacher: RemoteTeacher,
        *,
        max_total_usd: float = 1.0,
        ledger: str | os.PathLike[str] | None = None,
        budget: str = "judge",
        timeout: float = 60.0,
    ) -> None:
        teacher.require_key()
        self._teacher = teacher
        self._rules = CallRules(cap=cap_of(max_total_usd), budget=budget)
        self._timeout = timeout
        self._ledger = LedgerThread(ledger)
        self._known = KnownPrompts()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="action-judge", daemon=True)
        self._thread.start()
        self._client, self._caller = self._wait(self._connect())
        self._failed_in_a_row = 0
        self.failed = 0
        self.no_room = 0

    def __enter__(self) -> ActionJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and ledger."""
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._ledger.close()

    def __call__(self, first: str, second: str, /) -> bool | None:
        """Return whether the judge finds two actions the same; None if it does not say."""
        if max(len(first), len(second)) > _LONGEST_ACTION:
            return None  # if truncated, two actions that differ only at the end would look the same
        if self._failed_in_a_row >= _GIVE_UP_AFTER:
            self.failed += 1
            return None
        # In one order, so that the same question is asked once.
        one, other = sorted((first, second))
        question: list[Message] = [
            {"role": "system", "content": PROMPT},
            {"role": "user", "content": f"Action A:\n{one}\n\nAction B:\n{other}"},
        ]
        prompt = PromptWriter([question], (), new_redactor()).prompt(question)
        called = self._wait(self._caller.call(self._teacher, prompt, self._known))
        self.no_room += called.no_room
        if called.error is not None:
            self.failed += 1
            self._failed_in_a_row = _GIVE_UP_AFTER if called.hopeless else self._failed_in_a_row + 1
        elif called.answer is not None:
            self._failed_in_a_row = 0
            return _verdict(render_action(called.answer.turn))
        return None

    async def _connect(self) -> tuple[TeacherClient, Caller]:
        client = TeacherClient(timeout=self._timeout, connections=1)
        return client, Caller(client, self._ledger, self._rules)

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _verdict(text: str) -> bool | None:
    """Return the verdict in a judge's answer; None if it says neither, both, or negates one."""
    words = re.findall(r"[A-Z']+", text.upper())
    # One that begins with its verdict may go on to explain it.
    said = set(words[:1] if words[:1] in (["SAME"], ["DIFFERENT"]) else words)
    if any(word == "NOT" or word.endswith("N'T") for word in said) or {"SAME", "DIFFERENT"} <= said:
        return None
    return True if "SAME" in said else False if "DIFFERENT" in said else None
