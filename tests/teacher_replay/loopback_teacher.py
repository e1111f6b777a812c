"""Teachers on loopback for tests: any number of models behind one real HTTP server, and what they were asked."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.traces import Step, TraceState


@dataclass(frozen=True)
class Asked:
    """A request. `earlier` is how many requests for the same model came before it, `beside` how many of them were still
    under way."""

    model: str
    body: dict[str, Any]
    raw: bytes
    headers: Mapping[str, str]
    earlier: int
    beside: int

    @property
    def text(self) -> str:
        """The last message, without marks for a cache."""
        content = self.body["messages"][-1]["content"]
        return content if isinstance(content, str) else content[-1]["text"]


@dataclass(frozen=True)
class Refusal:
    """A response other than an answer."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """An answer that ended for another reason than being complete."""

    text: str
    finish: str


@dataclass(frozen=True)
class Whole:
    """A response that is given as it stands, usage and all."""

    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bare:
    """A status and the bytes of a body."""

    status: int
    content: bytes


Said = str | dict[str, Any] | Refusal | Cut | Whole | Bare


def echo(asked: Asked) -> Said:
    """An answer that names the model and the question."""
    return f"{asked.model} on {asked.text}"


class Held:
    """Answers beyond the first few wait until they are let go."""

    def __init__(self, let_first: int) -> None:
        self.go = threading.Event()
        self.let_first = let_first

    def __call__(self, asked: Asked) -> Said:
        if asked.earlier >= self.let_first:
            assert self.go.wait(600)
        return f"{asked.model} on {asked.text}"


class LoopbackTeachers:
    """Serves while its `with` block runs. `answer` may take its time: every request has a thread of its own."""

    def __init__(self, answer: Callable[[Asked], Said] = echo) -> None:
        self.answer = answer
        # The part of every prompt that is said to come from a cache.
        self.cached = 0.0
        self.asked: list[Asked] = []
        self.in_flight = 0
        self.peak = 0
        self.peak_of: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._changed = threading.Condition()
        teachers = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                teachers._respond(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> LoopbackTeachers:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, model: str) -> list[Asked]:
        """The requests for one model, in the order in which they came."""
        return [asked for asked in self.asked if asked.model == model]

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait on what was asked."""
        with self._changed:
            assert self._changed.wait_for(holds, 600), (
                f"{len(self.asked)} requests came, {self.in_flight} are under way"
            )

    def spec(self, slug: str, **fields: Any) -> dict[str, Any]:
        """A teacher as a user writes it."""
        return {"slug": slug, "base_url": self.url, **fields}

    def _respond(self, handler: BaseHTTPRequestHandler, raw: bytes) -> None:
        body = json.loads(raw)
        model = body["model"]
        with self._changed:
            asked = Asked(model, body, raw, dict(handler.headers), len(self.of(model)), self._under_way[model])
            self.asked.append(asked)
            self.in_flight += 1
            self._under_way[model] += 1
            self.peak = max(self.peak, self.in_flight)
            self.peak_of[model] = max(self.peak_of[model], self._under_way[model])
            self._changed.notify_all()
        try:
            said = self.answer(asked)
        finally:
            with self._changed:
                self.in_flight -= 1
                self._under_way[model] -= 1
                self._changed.notify_all()
        status, headers, content = _response(said, usage_of(raw, self.cached))
        lines = [f"HTTP/1.1 {status} x", "Content-Type: application/json", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        # In one piece: two would wait for each other.
        handler.wfile.write("\r\n".join([*lines, "", ""]).encode() + content)


class EndlessModels:
    """A server whose list of models comes a byte at a time and has no end, and which answers nothing else."""

    def __enter__(self) -> EndlessModels:
        self._over = threading.Event()
        over = self._over

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                with suppress(OSError):
                    while not over.wait(0.05):
                        self.wfile.write(b" ")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def end(self) -> None:
        """End the lists after all."""
        self._over.set()

    def __exit__(self, *_: object) -> None:
        self.end()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _response(said: Said, usage: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    if isinstance(said, Refusal):
        return said.status, said.headers, json.dumps({"error": {"message": said.message}}).encode()
    if isinstance(said, Bare):
        return said.status, {}, said.content
    if isinstance(said, Whole):
        return 200, said.headers, json.dumps(said.body).encode()
    finish = said.finish if isinstance(said, Cut) else "stop"
    message = said if isinstance(said, dict) else {"content": said.text if isinstance(said, Cut) else said}
    usage["completion_tokens"] = len(json.dumps(message)) // 4
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return 200, {}, json.dumps({"choices": [choice], "usage": usage}).encode()


def usage_of(raw: bytes, cached: float) -> dict[str, Any]:
    """Four bytes a token."""
    tokens = len(raw) // 4
    return {"prompt_tokens": tokens, "prompt_tokens_details": {"cached_tokens": int(tokens * cached)}}


def to_replay(trace_id: str, states: Iterable[TraceState], *tools: Any, **fields: Any) -> TraceToReplay:
    """A trace of these states."""
    return TraceToReplay(trace_id, [Step.of(state) for state in states], *tools, **fields)


def states_of(*texts: str, student: str = "the student's", padding: int = 0) -> list[TraceState]:
    """The states of a trace whose last messages are these."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You write code. " * (1 + padding // 16)}]
    states = []
    for number, text in enumerate(texts):
        messages = [*messages, {"role": "user", "content": text}]
        states.append(TraceState(state_id=f"t::{number:04d}", messages=messages, student_action=student))
        messages = [*messages, {"role": "assistant", "content": f"did {text}"}]
    return states
