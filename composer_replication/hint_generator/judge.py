"""Hints from a judge: a model at any OpenAI-compatible endpoint that reads the error and says what to do.

Answers are kept on disk, so a second run, or a second epoch, asks nothing again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from composer_replication._optional import require
from composer_replication.hint_generator.details import HintContext, one_line

logger = logging.getLogger(__name__)

PROMPT = """\
You help a coding agent to choose its next action well. You are shown what would go wrong with the action it is about \
to take. Write one hint, at most two short sentences, that tells it what to do instead: name the tool, file, option or \
parameter. Do not mention that anything failed, do not apologise, do not use markdown. If there is no useful advice, \
answer NONE."""

# What the judge is shown, in this order.
_SHOWN = (
    "error_kind",
    "tool_name",
    "error_message",
    "command",
    "path",
    "exit_code",
    "available_tools",
    "available_names",
    "tool_schema",
    "signature",
    "intent",
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'`)\]]*\s+(?=[\"'`(\[]?[A-Z0-9`])")
_LONGEST_HINT = 400
_LONGEST_QUESTION = 8_000
# Bulk that is far beyond what is sent.
_LONGEST_VALUE = 50_000


class JudgeHints:
    """A `HintSource` that asks a model.

    A judge that does not answer costs a warning and no hint, never a training run: a failed call returns None and is
    asked again next time; after `give_up_after` failures in a row nothing is asked any more.

    What leaves the machine is redacted first, whatever was done to the trace before, by the redactor of `ingest`; only
    `redact` changes that.

    Args:
        model: the name the endpoint knows the model by.
        base_url: the endpoint; without it, the SDK's own (`OPENAI_BASE_URL`, else OpenAI).
        api_key: the key; without it, the environment variable `api_key_variable` is read. An endpoint of your own
            (`base_url`) may need none.
        api_key_variable: where to look for the key.
        cache_path: the SQLite file of answers; None keeps them in memory.
        timeout: seconds for one try.
        max_retries: further tries, on timeouts, connection errors and overload.
        redact: applied to the text that is sent, instead of the redactor of `ingest`. False sends it as it is.
        request: more fields for the request, such as `{"max_tokens": 200}`.
        give_up_after: failures in a row after which the judge is left alone.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_variable: str = "OPENAI_API_KEY",
        cache_path: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        max_retries: int = 2,
        redact: Callable[[str], str] | Literal[False] | None = None,
        request: Mapping[str, Any] | None = None,
        give_up_after: int = 5,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout must be positive, not {timeout}")
        if max_retries < 0:
            raise ValueError(f"max_retries must not be negative, not {max_retries}")
        key = api_key or os.environ.get(api_key_variable)
        if not key and base_url is None:
            raise ValueError(
                f"the judge needs a key: set {api_key_variable}, or give api_key, or a base_url of your own"
            )
        require("openai", "replay")
        self.model = model
        self.base_url = base_url
        self.timeout = timeout
        self.max_retries = max_retries
        self.redact = redact
        self.request = dict(request or {})
        self.give_up_after = give_up_after
        self._key = key or "none"
        self._answers = AnswerCache(cache_path)
        self._client: Any = None
        self._failures = 0
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}

    def __repr__(self) -> str:
        return f"JudgeHints(model={self.model!r}, base_url={self.base_url!r})"

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes: everything but what belongs to this one."""
        return {**self.__dict__, "_client": None, "_lock": None, "_asking": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __call__(self, ctx: HintContext, /) -> str | None:
        """The judge's hint, at most two sentences; None if it has none or does not answer."""
        question = self._question(ctx)
        key = hashlib.sha256(json.dumps([self.model, PROMPT, question, self.request]).encode()).hexdigest()
        # One thread asks, the others wait for its answer instead of asking the same.
        with self._lock:
            turn = self._asking.setdefault(key, threading.Lock())
        try:
            with turn:
                answer = self._answers.get(key)
                if answer is None:
                    answer = self._ask(question)
                    if answer is not None:
                        self._answers.put(key, self.model, answer)
        except sqlite3.Error as error:
            logger.warning("the judge's cache cannot be used, so it gives no hint: %s", error)
            return None
        finally:
            with self._lock:
                self._asking.pop(key, None)
        return answer or None

    def _question(self, ctx: HintContext) -> str:
        shown = {key: ctx[key] for key in _SHOWN if ctx.get(key) not in (None, "", [], {})}  # type: ignore[literal-required]
        lines = []
        for key, value in shown.items():
            text = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str, sort_keys=True)
            )
            lines.append(f"{key}: {text[:_LONGEST_VALUE]}")
        question = "\n".join(lines)
        # Cut after it is redacted: half a secret is not recognised.
        return (question if self.redact is False else (self.redact or _redacted)(question))[:_LONGEST_QUESTION]

    def _ask(self, question: str) -> str | None:
        """The judge's answer, "" if it has nothing to say, None if it did not answer."""
        if self._failures >= self.give_up_after:
            return None
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": question}]
        try:
            reply = self._connected().chat.completions.create(model=self.model, messages=messages, **self.request)
            answer = at_most_two_sentences(_content(reply))
        except Exception as error:  # noqa: BLE001 - whatever the endpoint or the SDK does, training goes on
            self._failures += 1
            more = "; it will not be asked again" if self._failures >= self.give_up_after else ""
            logger.warning("the judge %s did not answer: %s%s", self.model, self._described(error), more)
            return None
        self._failures = 0
        return answer

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                openai = require("openai", "replay")
                self._client = openai.OpenAI(
                    api_key=self._key, base_url=self.base_url, timeout=self.timeout, max_retries=self.max_retries
                )
            return self._client

    def _described(self, error: Exception) -> str:
        # Endpoints repeat the request, and some the key, in their errors.
        status = getattr(error, "status_code", None)
        text = f"{type(error).__name__}{f' {status}' if status else ''}: {error}"
        return one_line(text.replace(self._key, "[key]") if len(self._key) > 4 else text, 200)


class AnswerCache:
    """Answers on disk, safe for several processes. Nothing stays open, so it may be forked or pickled."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._memory: dict[str, str] = {}
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _connection(self._path) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT, answer TEXT)")

    def get(self, key: str) -> str | None:
        """The answer kept under a key, None if there is none."""
        if key in self._memory or self._path is None:
            return self._memory.get(key)
        with _connection(self._path) as connection:
            row = connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        self._memory[key] = row[0]
        return str(row[0])

    def put(self, key: str, model: str, answer: str) -> None:
        """Keep an answer."""
        self._memory[key] = answer
        if self._path is not None:
            with _connection(self._path) as connection:
                connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, model, answer))


@contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for one statement: committed and closed. A call to a judge takes a thousand times as long."""
    connection = sqlite3.connect(path, timeout=30)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def _redacted(text: str) -> str:
    # Imported here: the reader of logs imports this package. A redactor remembers, so each question has its own.
    from composer_replication.ingestion.redaction import Redactor

    redactor = Redactor()
    return redactor.again(redactor.text(text))


def _content(reply: Any) -> str:
    choices = getattr(reply, "choices", None)
    content = choices[0].message.content if choices else None
    if not isinstance(content, str):
        raise ValueError("the reply has no text")
    return content


def at_most_two_sentences(text: str) -> str:
    """The first two sentences of a text, on one line; "" for an empty text or a refusal to advise."""
    line = " ".join(re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).split()).strip("\"' ")
    if line.rstrip(".").upper() == "NONE":
        return ""
    ends = [found.start() for found in _SENTENCE_END.finditer(line)]
    if len(ends) >= 2:
        line = line[: ends[1]]
    return one_line(line, _LONGEST_HINT)
