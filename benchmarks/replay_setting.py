"""What the replay benchmark is played with: three teachers, a session to replay, and what each teacher would have done.

The session has the shape of real ones: the system prompt and the tools come first, steps of log-normal size follow, and
the context begins anew with a summary when it is full. Everything is drawn from fixed seeds, step by step, so that the
server finds the answer to a question by the number of its step alone.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from metered_billing import Teacher

if TYPE_CHECKING:
    from metered_server import Question

    from composer_replication.traces import Trace

# List prices of the three default teachers, in dollars per million tokens. `latency` and `latency_spread` are seconds
# at full scale: medians of 4 to 9, and 19 to 20 at the 95th percentile.
TEACHERS = {
    "anthropic/claude-opus-4.7": Teacher(
        input_per_mtok=5.0,
        output_per_mtok=25.0,
        cached_per_mtok=0.5,
        cache_write_per_mtok=6.25,
        cache="explicit",
        cache_seconds=300.0,
        latency=6.0,
        latency_spread=0.7,
    ),
    "openai/gpt-5": Teacher(
        input_per_mtok=1.25,
        output_per_mtok=10.0,
        cached_per_mtok=0.125,
        cache="automatic",
        cache_seconds=300.0,
        thinking_tokens=400,
        latency=9.0,
        latency_spread=0.5,
    ),
    "deepseek/deepseek-v4-pro": Teacher(
        input_per_mtok=0.95526,
        output_per_mtok=1.91052,
        cached_per_mtok=0.079605,
        cache="automatic",
        cache_seconds=300.0,
        thinking_tokens=300,
        latency=4.0,
        latency_spread=0.95,
    ),
}

# How often teachers vote in which way, in any order of the three: S does what the student did, A, B and C do not.
# More than half of the states go with the student, three in ten have two teachers or more against it.
VOTES = {"SSS": 0.35, "SSA": 0.20, "AAA": 0.12, "AAS": 0.09, "AAB": 0.09, "SAB": 0.09, "ABC": 0.06}

_BYTES_PER_TOKEN = 4
_SYSTEM_BYTES, _TOOLS_BYTES = 32_000, 28_000
# What a step adds to the context: quantiles of public sessions of Claude Code fit this law.
_STEP_TOKENS, _STEP_SPREAD = 700, 1.07
_LONGEST_STEP_TOKENS = 18_000
_FULL_CONTEXT_TOKENS, _SUMMARY_BYTES = 150_000, 8_000

_STEP = re.compile(rb"\[step (\d+):(\d+)\]")
_WORDS = (
    "def return import class self None True value error config path file open read write result index token "
    "model request response handler session buffer cursor assert raise yield lambda async await const function "
    'export interface public static struct match enum impl (value, (self, = == != + : -> [0] {} "name": '
    "'single' # TODO if not else for in while try: except: finally: with as "
)
_TOOLS = {
    "Bash": ("command", "description"),
    "Edit": ("file_path", "old_string", "new_string"),
    "Glob": ("pattern", "path"),
    "Grep": ("pattern", "path", "glob"),
    "Read": ("file_path", "offset", "limit"),
    "Write": ("file_path", "content"),
}
_NUMBERS = {"offset": "integer", "limit": "integer"}


class Call(NamedTuple):
    """A tool call; its arguments in the order in which they are written."""

    name: str
    arguments: dict[str, Any]


class Step(NamedTuple):
    """What is done at one step, by the student and by each of the teachers."""

    student: Call
    teachers: dict[str, Call]


@functools.cache
def step(trace: int, number: int) -> Step:
    """One step of a trace."""
    drawn = random.Random(f"step {trace} {number}")
    votes = list(drawn.choices(list(VOTES), list(VOTES.values()))[0])
    drawn.shuffle(votes)
    kinds = itertools.cycle(drawn.sample(_KINDS, len(_KINDS)))
    done = {vote: make(drawn, number) for vote, make in zip("SABC", kinds, strict=False)}
    return Step(done["S"], {teacher: done[vote] for teacher, vote in zip(TEACHERS, votes, strict=True)})


def pairs_to_be_found(states: int) -> int:
    """Of the first trace: states at which two teachers or more do the same, and not what the student did."""
    steps = [step(0, number) for number in range(states)]
    rivals = [[call for call in one.teachers.values() if call != one.student] for one in steps]
    return sum(any(calls.count(call) >= 2 for call in calls) for calls in rivals)


def answer(question: Question) -> dict[str, Any]:
    """What a teacher says to the state that a question ends with."""
    found = _STEP.search(question.raw_messages[-1])
    if found is None:
        raise ValueError("the question does not end with a step of this setting")
    trace, number = int(found[1]), int(found[2])
    call = _spelled(step(trace, number).teachers[question.model], question.model)
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {
        "role": "assistant",
        "content": _SAYS[question.model],
        "tool_calls": [{"id": f"call_{trace}_{number}", "type": "function", "function": function}],
    }


def write_traces(folder: Path, traces: int, states: int) -> None:
    """A folder of traces as `ingest` writes them."""
    from composer_replication.ingestion.store import ManifestEntry, TraceStore

    store = TraceStore(folder)
    for number in range(traces):
        name = f"session-{number:02d}"
        output = store.output_name(f"{number:08x}", name)
        store.write_traces(output, [_trace(name, number, states)])
        store.note(ManifestEntry(name, f"{number:08x}", "read", size=0, modified_ns=0, output=output, traces=1))


def faster(times: float) -> dict[str, Teacher]:
    """The teachers, so many times as fast; their caches forget as much sooner."""
    return {
        name: msgspec.structs.replace(
            teacher, latency=teacher.latency / times, cache_seconds=(teacher.cache_seconds or 0.0) / times
        )
        for name, teacher in TEACHERS.items()
    }


def _trace(name: str, number: int, states: int) -> Trace:
    from composer_replication.traces import Source, ToolCall, Trace, Turn

    drawn = random.Random(f"trace {number}")
    text = _lines(drawn)

    def some(size: int) -> str:
        return "".join(itertools.islice(text, 0, max(1, size // 60)))[:size]

    start = _SYSTEM_BYTES + _TOOLS_BYTES
    turns = [
        Turn("system", "You are a coding agent.\n" + some(_SYSTEM_BYTES)),
        Turn("user", f"Make the tests pass.\n{some(400)}\n[step {number}:0]"),
    ]
    size = start
    for state in range(states):
        call = ToolCall(f"call_{number}_{state}", *step(number, state).student)
        turns.append(Turn("assistant", "", tool_calls=[call]))
        tokens = min(_LONGEST_STEP_TOKENS, int(drawn.lognormvariate(0.0, _STEP_SPREAD) * _STEP_TOKENS))
        ending = f"\n[step {number}:{state + 1}]"
        turns.append(Turn("tool", some(tokens * _BYTES_PER_TOKEN) + ending, tool_call_id=call.id))
        size += tokens * _BYTES_PER_TOKEN
        if size > _FULL_CONTEXT_TOKENS * _BYTES_PER_TOKEN:
            turns.append(Turn("user", f"What was done so far:\n{some(_SUMMARY_BYTES)}{ending}", follows=-1))
            size = start + _SUMMARY_BYTES
    return Trace(name, turns, Source(f"{name}.jsonl", "made up"), tools=_definitions(drawn))


def _lines(drawn: random.Random) -> Iterator[str]:
    """Source text without an end, of about four bytes to a token."""
    words = _WORDS.split()
    while True:
        yield "    " * drawn.randrange(4) + " ".join(drawn.choices(words, k=9)) + "\n"


def _definitions(drawn: random.Random) -> list[dict[str, Any]]:
    text = _lines(drawn)
    each = _TOOLS_BYTES // len(_TOOLS)

    def described(parameters: tuple[str, ...]) -> str:
        return "".join(itertools.islice(text, 0, each // 60))[: each - 80 * len(parameters)]

    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": described(parameters),
                "parameters": {
                    "type": "object",
                    "properties": {name: {"type": _NUMBERS.get(name, "string")} for name in parameters},
                    "required": [parameters[0]],
                },
            },
        }
        for name, parameters in _TOOLS.items()
    ]


def _spelled(call: Call, teacher: str) -> Call:
    """The same action as this teacher usually writes it: no two of them write the same text."""
    match _SPELLING[teacher]:
        case "bare":
            return call
        case "dotted":
            arguments = {name: f"./{value}" if "path" in name else value for name, value in call.arguments.items()}
        case "quoted":
            arguments = dict(reversed(call.arguments.items()))
            if call.name == "Bash":
                *words, test, _option, word = call.arguments["command"].split()
                arguments = {"command": f"{' '.join(words)} -q -k '{word}' \"{test}\"", "description": "Run the tests"}
    return Call(call.name, arguments)


def _file(drawn: random.Random) -> str:
    return f"src/{drawn.choice(('api', 'core', 'store', 'web'))}/{drawn.choice(_NOUNS)}_{drawn.randrange(40)}.py"


def _bash(drawn: random.Random, number: int) -> Call:
    test = f"tests/test_{drawn.choice(_NOUNS)}_{number}.py"
    return Call("Bash", {"command": f"python -m pytest {test} -k {drawn.choice(_NOUNS)}"})


def _read(drawn: random.Random, number: int) -> Call:
    return Call("Read", {"file_path": _file(drawn), "offset": number, "limit": 200})


def _edit(drawn: random.Random, number: int) -> Call:
    name = drawn.choice(_NOUNS)
    old, new = f"    return {name}\n", f"    return {name}_{number}\n"
    return Call("Edit", {"file_path": _file(drawn), "old_string": old, "new_string": new})


def _grep(drawn: random.Random, number: int) -> Call:
    return Call("Grep", {"pattern": f"def {drawn.choice(_NOUNS)}_{number}", "path": "src", "glob": "*.py"})


_SPELLING = {"anthropic/claude-opus-4.7": "quoted", "openai/gpt-5": "dotted", "deepseek/deepseek-v4-pro": "bare"}
_SAYS = {
    "anthropic/claude-opus-4.7": "I'll take this one step at a time.",
    "openai/gpt-5": None,
    "deepseek/deepseek-v4-pro": "Let me look at this.",
}
_NOUNS = ("account", "handler", "index", "limit", "order", "parser", "queue", "session", "token", "user")
_KINDS = (_bash, _read, _edit, _grep)
