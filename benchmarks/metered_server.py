"""Teachers on loopback with a meter of their own: an OpenAI-compatible server that bills, caches and misbehaves.

In a test or a benchmark, on a thread of its own:

    with MeteredServer({"big": Teacher(input_per_mtok=5, output_per_mtok=25)}) as server:
        ...  # POST to server.url + "/chat/completions"
        server.wait_until_idle()
        server.meter.spent  # nano-dollars

As a process of its own, which prints one line of JSON with its address and serves until it is terminated:

    python benchmarks/metered_server.py [--port N] [--config FILE] [--with-stdin]

GET /meter gives the figures, POST /script takes `{"next": [...], "chances": {...}}` (see `misbehaviour`), POST /release
lets go of what hangs. A request is billed when its answer has been generated, right before that is written, whether or
not there is still somebody to read it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import random
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from loopback_http import Connection, Request
from metered_billing import MOST_MARKERS, Prompt, PromptCache, PromptReader, Teacher, Usage, cost, limited
from misbehaviour import TOO_LONG, Chances, Misbehaviour, Reply, encode, failure
from provider_meter import Meter, Record
from usage_dialects import DIALECTS, Taken

UNLIMITED = 1 << 40


class _Body(msgspec.Struct):
    model: str
    messages: list[msgspec.Raw]
    tools: msgspec.Raw = msgspec.Raw(b"")
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False


_decode_body = msgspec.json.Decoder(_Body).decode


class Question:
    """A request as scripts and answers see it. `digest` is of messages and tools, `messages_digest` of messages alone;
    both are the same with and without cache markers."""

    def __init__(self, model: str, prompt: Prompt, raw_messages: list[msgspec.Raw], max_tokens: int | None) -> None:
        self.model = model
        self.prompt = prompt
        self.digest = prompt.digest
        self.messages_digest = prompt.messages_digest
        self.raw_messages = raw_messages
        self.max_tokens = max_tokens

    def message(self, index: int) -> dict[str, Any]:
        """One message, decoded."""
        decoded: dict[str, Any] = msgspec.json.decode(self.raw_messages[index])
        return decoded


Answer: TypeAlias = Callable[[Question], dict[str, Any]]
Script: TypeAlias = Callable[[Question, int], Misbehaviour | None]


def plain_answer(question: Question) -> dict[str, Any]:
    """A text that names the model and the question."""
    return {"role": "assistant", "content": f"{question.model} answers {question.digest}"}


def answers_from(table: Mapping[str, dict[str, Any]], otherwise: Answer = plain_answer) -> Answer:
    """Messages by `metered_billing.messages_digest` of the question."""
    return lambda question: table.get(question.messages_digest) or otherwise(question)


class MeteredServer:
    """Serves `teachers` by name on 127.0.0.1, on a thread of its own, while its `with` block runs.

    `answer` makes the message that answers a question; `script` says what goes wrong with it; `latency` overrides the
    teachers' own. A request that is under way when the block ends is dropped unbilled.
    """

    def __init__(
        self,
        teachers: Mapping[str, Teacher],
        *,
        answer: Answer = plain_answer,
        script: Script | None = None,
        latency: Callable[[Question], float] | None = None,
        seed: int = 0,
        port: int = 0,
    ) -> None:
        self.meter = Meter()
        self.script = script
        self.url = ""
        self._teachers = teachers
        self._answer = answer
        self._latency = latency or self._drawn_latency
        self._seed = seed
        self._port = port
        self._reader = PromptReader()
        self._caches = {name: PromptCache(teacher) for name, teacher in teachers.items()}
        self._planned: deque[Misbehaviour] = deque()
        self._changed = threading.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()

    def __enter__(self) -> MeteredServer:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(started.set)), daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def serve(self, started: Callable[[], object]) -> None:
        """Serve in this event loop until `stop`; for a process that does nothing else."""
        self._loop = asyncio.get_running_loop()
        self._stop, self._released = asyncio.Event(), asyncio.Event()
        server = await self._loop.create_server(
            lambda: Connection(self._receive, self._opened, self._closed), "127.0.0.1", self._port, backlog=1024
        )
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        started()
        await self._stop.wait()
        server.close()
        for connection in list(self._connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """From the server's own loop: end `serve`."""
        self._stop.set()

    def plan(self, *misbehaviours: Misbehaviour) -> None:
        """For the next requests, one each, before the script is asked."""
        self._planned.extend(misbehaviours)

    def release(self) -> None:
        """Let everything that hangs go on, now and until `hold`."""
        self._loop.call_soon_threadsafe(self._released.set)

    def hold(self) -> None:
        """After `release`: let what is to hang hang again."""
        self._loop.call_soon_threadsafe(self._released.clear)

    def wait_until(self, holds: Callable[[Meter], bool], seconds: float = 600.0) -> None:
        """Wait on the meter; raises TimeoutError if nothing comes of it."""
        with self._changed:
            if not self._changed.wait_for(lambda: holds(self.meter), seconds):
                raise TimeoutError(f"the meter did not get there in {seconds} s: {self.meter.figures()}")

    def wait_until_idle(self, seconds: float = 600.0) -> None:
        """Until no request is under way."""
        self.wait_until(lambda meter: meter.in_flight == 0, seconds)

    def wait_until_left(self, seconds: float = 600.0) -> None:
        """After all clients are gone: until what they sent has arrived, and has been worked on and billed."""
        # Connections are accepted in their order: when this one has been, all that killed clients opened have been.
        address = urlsplit(self.url)
        with socket.create_connection((address.hostname, address.port)) as last:
            last.sendall(b"GET /v1/models HTTP/1.1\r\n\r\n")
            last.recv(1)
        self.wait_until(lambda meter: meter.in_flight == meter.connections == 0, seconds)

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        with self._changes():
            self.meter.connections += 1

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        with self._changes():
            self.meter.connections -= 1

    def _receive(self, connection: Connection, request: Request) -> None:
        # A task of its own: what was asked is answered and billed even if the connection ends.
        task = self._loop.create_task(self._respond(connection, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, connection: Connection, request: Request) -> None:
        try:
            if (request.method, request.path) == ("POST", "/v1/chat/completions"):
                await self._complete(connection, request.headers.get("authorization", ""), request.body)
            else:
                await connection.write(self._other(request.method, request.path, request.body))
        except Exception as error:
            self.meter.broken.append(repr(error))
            await connection.write(failure(500, "the metered server itself is at fault"))
            raise

    def _other(self, method: str, path: str, body: bytes) -> Reply:
        match method, path:
            case "GET", "/meter":
                return encode(self.meter.figures())
            case "GET", "/v1/models":
                self.meter.listed += 1
                models = [
                    {"id": name, "object": "model", "context_length": teacher.context_length}
                    for name, teacher in self._teachers.items()
                ]
                return encode({"object": "list", "data": models})
            case "POST", "/script":
                try:
                    told = msgspec.json.decode(body, type=_Script)
                except (msgspec.DecodeError, msgspec.ValidationError) as error:
                    return failure(400, str(error))
                self.plan(*told.next)
                self.script = told.chances
                return encode({})
            case "POST", "/release":
                self._released.set()
                return encode({})
        return failure(404, f"there is no {method} {path}")

    async def _complete(self, connection: Connection, authorization: str, body: bytes) -> None:
        arrived = time.time()
        try:
            question = self._read(body)
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            await connection.write(failure(400, f"the request cannot be read: {error!r}"))
            return
        teacher = self._teachers.get(question.model)
        if teacher is None:
            await connection.write(failure(404, f"there is no model {question.model!r}"))
            return
        if teacher.cache == "explicit" and len(question.prompt.markers) > MOST_MARKERS:
            await connection.write(failure(400, f"more than {MOST_MARKERS} blocks carry cache_control"))
            return
        if teacher.window is not None and question.prompt.tokens(teacher)[-1] > teacher.window:
            self.meter.too_long += 1
            await connection.write(TOO_LONG[teacher.refusal](question.prompt.tokens(teacher)[-1], teacher.window))
            return
        record = Record(question.model, question.digest, question.max_tokens, arrived)
        count = self.meter.counts[question.model, question.digest]
        self.meter.authorizations[question.model].add(authorization)
        with self._in_flight(record):
            how = self._planned.popleft() if self._planned else None
            if how is None and self.script is not None:
                how = self.script(question, count.asked)
            with self._changes():
                count.asked += 1
            record.misbehaviour = how.kind if how else None
            usage, answered = self._generate(teacher, question, arrived)
            reply = how.reply(answered, time.time()) if how else encode(answered)
            record.status, record.retry_at = reply.status, reply.retry_at
            if reply.hang == "before billing":
                await self._released.wait()
            if how is None or how.billed:
                await asyncio.sleep(self._latency(question) + teacher.latency_per_token * usage.output)
                with self._changes():
                    count.billed += 1
                    record.usage, record.billed = usage, cost(teacher, usage)
                    self.meter.spent += record.billed
                    self.meter.spent_on[question.model] += record.billed
                    self._caches[question.model].store(question.prompt, time.time())
                if reply.hang == "after billing":
                    await self._released.wait()
            if (how is None or how.answers) and connection.is_open:
                # Before it is written: whoever has read an answer finds it counted.
                with self._changes():
                    count.answered += 1
            await connection.write(reply)

    def _read(self, body: bytes) -> Question:
        told = _decode_body(body)
        if told.stream:
            raise TypeError("streaming is not offered")
        prompt = self._reader.read(told.model, told.messages, bytes(told.tools))
        limit = told.max_completion_tokens if told.max_completion_tokens is not None else told.max_tokens
        return Question(told.model, prompt, told.messages, limit)

    def _generate(self, teacher: Teacher, question: Question, now: float) -> tuple[Usage, dict[str, Any]]:
        limit = UNLIMITED if question.max_tokens is None else question.max_tokens
        message, generated, complete = limited(self._answer(question), teacher, limit)
        cached, written = self._caches[question.model].look_up(question.prompt, now)
        prompt_tokens = question.prompt.tokens(teacher)[-1] if question.raw_messages else 0
        usage = Usage(prompt_tokens - cached - written, cached, written, generated)
        taken = Taken(usage, min(teacher.thinking_tokens, limit), cost(teacher, usage))
        reported = DIALECTS[teacher.dialect](taken)
        finish = ("tool_calls" if message.get("tool_calls") else "stop") if complete else "length"
        return usage, {
            "id": f"gen-{question.digest}",
            "object": "chat.completion",
            "created": int(now),
            "model": question.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
            "usage": reported,
        }

    def _drawn_latency(self, question: Question) -> float:
        teacher = self._teachers[question.model]
        if not teacher.latency_spread:
            return teacher.latency
        draw = random.Random(f"{self._seed} {question.model} {question.digest}")
        return teacher.latency * math.exp(draw.gauss(0.0, teacher.latency_spread))

    @contextmanager
    def _changes(self) -> Any:
        with self._changed:
            yield
            self._changed.notify_all()

    @contextmanager
    def _in_flight(self, record: Record) -> Any:
        meter, model = self.meter, record.model
        with self._changes():
            meter.records.append(record)
            meter.in_flight += 1
            meter.in_flight_of[model] += 1
            meter.peak = max(meter.peak, meter.in_flight)
            meter.peak_of[model] = max(meter.peak_of[model], meter.in_flight_of[model])
        try:
            yield
        finally:
            with self._changes():
                record.ended = time.time()
                meter.in_flight -= 1
                meter.in_flight_of[model] -= 1


class _Script(msgspec.Struct, forbid_unknown_fields=True):
    next: list[Misbehaviour] = []
    chances: Chances | None = None


class _Configuration(msgspec.Struct, forbid_unknown_fields=True):
    """`answers` are messages by `messages_digest`, or "module:function" for an `Answer`."""

    teachers: dict[str, Teacher]
    answers: dict[str, dict[str, Any]] | str = {}
    chances: Chances | None = None
    seed: int = 0


def _answers(told: dict[str, dict[str, Any]] | str) -> Answer:
    if not isinstance(told, str):
        return answers_from(told)
    module, _, name = told.partition(":")
    answer: Answer = getattr(importlib.import_module(module), name)
    return answer


async def _serve(configuration: _Configuration, port: int, with_stdin: bool) -> None:
    server = MeteredServer(
        configuration.teachers,
        answer=_answers(configuration.answers),
        script=configuration.chances,
        seed=configuration.seed,
        port=port,
    )
    loop = asyncio.get_running_loop()

    def started() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        if with_stdin:
            loop.add_reader(sys.stdin, lambda: None if sys.stdin.read(1) else server.stop())
        print(json.dumps({"url": server.url}), flush=True)

    await server.serve(started)


def main() -> None:
    """Serve as a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--config", type=Path, required=True, help="JSON: teachers, answers, chances, seed")
    parser.add_argument("--with-stdin", action="store_true", help="end when the standard input does")
    arguments = parser.parse_args()
    configuration = msgspec.json.decode(arguments.config.read_bytes(), type=_Configuration)
    asyncio.run(_serve(configuration, arguments.port, arguments.with_stdin))


if __name__ == "__main__":
    main()
