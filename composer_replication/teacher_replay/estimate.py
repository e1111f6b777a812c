"""The estimated cost of a replay: no call is made, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from composer_replication.teacher_replay.agreement.comparison import ExactComparer
from composer_replication.teacher_replay.answers import SequentialGate
from composer_replication.teacher_replay.calls import call_key
from composer_replication.teacher_replay.ledger import StoredAnswers
from composer_replication.teacher_replay.prices import Tokens, to_usd
from composer_replication.teacher_replay.prompts import (
    SHORTEST_CACHED,
    KnownPrompts,
    Prompt,
    PromptWriter,
    new_redactor,
    token_bound,
)
from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.teacher_replay.replay_report import BYTES_PER_TOKEN
from composer_replication.teacher_replay.schedule import ReplayOptions, cheapest_first
from composer_replication.teacher_replay.teachers import RemoteTeacher, same_family
from composer_replication.teacher_replay.tool_schemas import complete_tools
from composer_replication.traces import action_text


@dataclass
class TeacherEstimate:
    """One teacher's calls, if all of them are made. Money in nano-dollars.

    `expected` is with the provider's prompt cache, `uncached` without it; `dearest_call` is the highest worst case of a
    call, which must fit under the cap for that call to be made. `too_long` are prompts that do not fit the teacher, as
    far as that is known without asking it.
    """

    calls: int = 0
    stored: int = 0
    too_long: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    expected: int = 0
    uncached: int = 0
    dearest_call: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON; money in dollars."""
        return {
            "calls": self.calls,
            "stored": self.stored,
            "too_long": self.too_long,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "expected_usd": to_usd(self.expected),
            "without_prompt_cache_usd": to_usd(self.uncached),
            "dearest_call_usd": to_usd(self.dearest_call),
        }


@dataclass
class ReplayEstimate:
    """The price of a replay. `at_least` counts the teachers that a sequential gate asks in any case (0 for a custom
    gate), `at_most` all of them; without a gate both are the same. A token is counted as four bytes."""

    traces: int = 0
    states: int = 0
    teachers: dict[str, TeacherEstimate] = field(default_factory=dict)
    at_least: int = 0
    same_family: dict[str, str] = field(default_factory=dict)

    @property
    def at_most(self) -> int:
        """Nano-dollars if every call is made."""
        return sum(teacher.expected for teacher in self.teachers.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON; money in dollars."""
        return {
            "traces": self.traces,
            "states": self.states,
            "at_least_usd": to_usd(self.at_least),
            "at_most_usd": to_usd(self.at_most),
            "same_family": self.same_family,
            "teachers": {slug: teacher.as_dict() for slug, teacher in self.teachers.items()},
        }


def estimate_replay(
    traces: Iterable[TraceToReplay], teachers: Sequence[RemoteTeacher], options: ReplayOptions
) -> ReplayEstimate:
    """Price every call whose answer is not in the ledger."""
    estimate = ReplayEstimate(teachers={teacher.slug: TeacherEstimate() for teacher in teachers})
    with closing(StoredAnswers(options.ledger)) as stored:
        for trace in traces:
            _add_trace(estimate, trace, teachers, options, stored)
    return estimate


def _add_trace(
    estimate: ReplayEstimate,
    trace: TraceToReplay,
    teachers: Sequence[RemoteTeacher],
    options: ReplayOptions,
    stored: StoredAnswers,
) -> None:
    estimate.traces += 1
    related = same_family(teachers, trace.student_models)
    estimate.same_family.update(related)
    asked = [one for one in teachers if not (options.exclude_same_family and one.slug in related)]
    always = [one.slug for one in cheapest_first(asked)[: _fewest_asked(len(asked), options)]]
    redactor = new_redactor() if options.redact else None
    writer = PromptWriter(
        (step.messages for step in trace.steps), complete_tools(trace.tools, trace.steps), redactor, trace.protocol
    )
    before: Prompt | None = None
    unasked = KnownPrompts()
    for step in trace.steps:
        prompt = writer.prompt(step.messages)
        estimate.states += 1
        beginning = before.size if before is not None and prompt.begins_with(before) else 0
        is_certain = options.gate == "none" or action_text(step.turn).strip()
        for teacher in asked:
            of_teacher = estimate.teachers[teacher.slug]
            if call_key(teacher, prompt) in stored:
                of_teacher.stored += 1
                continue
            if unasked.too_long(prompt, teacher.context_window) is not None:
                of_teacher.too_long += 1
                continue
            cost = _add_call(of_teacher, teacher, prompt, beginning, options.expected_output_tokens)
            if teacher.slug in always and is_certain:
                estimate.at_least += cost
        before = prompt


def _fewest_asked(teachers: int, options: ReplayOptions) -> int:
    if options.gate == "none":
        return teachers
    if options.gate != "sequential":
        return 0
    gate = SequentialGate(ExactComparer(), threshold=options.agreement_threshold, min_margin=options.min_margin)
    return gate.fewest_asked(teachers)


def _add_call(estimate: TeacherEstimate, teacher: RemoteTeacher, prompt: Prompt, shared: int, output: int) -> int:
    tokens = prompt.size // BYTES_PER_TOKEN
    cached = shared // BYTES_PER_TOKEN if shared >= SHORTEST_CACHED else 0
    written = tokens - cached if teacher.cache_control and prompt.size >= SHORTEST_CACHED else 0
    expected = teacher.price.cost(Tokens(tokens, output, cached, written))
    worst = teacher.worst_case(token_bound(prompt))
    estimate.calls += 1
    estimate.prompt_tokens += tokens
    estimate.cached_tokens += cached
    estimate.expected += expected
    estimate.uncached += teacher.price.cost(Tokens(tokens, output))
    estimate.dearest_call = max(estimate.dearest_call, worst)
    return expected
