"""Preference pairs: where enough teachers agree on an action that is not the student's.

Extract trace by trace and merge the reports (`PairReport.add`): memory then holds one trace's answers at a time.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias

from composer_replication.teacher_replay.agreement.comparison import Comparer, ExactComparer
from composer_replication.teacher_replay.agreement.votes import Tally, Verdict, check_threshold, decide
from composer_replication.teacher_replay.answers import CallChecks
from composer_replication.teacher_replay.records import (
    DPOPair,
    GateSettings,
    Pair,
    TeacherCallResult,
    TeacherRow,
    add_gate,
    bare_action,
    check_state,
    gate_settings,
)
from composer_replication.traces import Step, TraceState, Turn

logger = logging.getLogger(__name__)

Agreement: TypeAlias = Literal["exact", "action"] | Comparer


class PairRule(NamedTuple):
    """The rule that pairs are extracted by; `warning` is set if the gate had another one."""

    agreement: Any
    threshold: int
    min_margin: int
    warning: str | None


@dataclass
class TeacherVotes:
    """One teacher's answers: their number, how many matched the student's action, how many support a pair."""

    answers: int = 0
    with_student: int = 0
    in_pairs: int = 0


@dataclass
class PairReport:
    """The pairs, and counts of what they were made from.

    Every state with an answer is a pair or in one of `below_threshold` (no rival action had enough teachers),
    `below_margin` (the next best action, or the student's own, had too many) and `no_student_action` (the student's
    turn holds thinking at most: there is nothing to reject).

    `histogram` counts the states with answers by the support of their leading rival; `ties` are states where several
    rivals have that many, and enough of them; `student_supported`, states where teachers did what the student did and
    no rival had more. Rows: `unknown_rows` are of states that were not given, `failed_rows` have an error, no action or
    a call that cannot be made, `repeated_rows` replace an earlier answer of the same teacher.
    """

    pairs: list[Pair] = field(default_factory=list)
    states: int = 0
    states_with_answers: int = 0
    below_threshold: int = 0
    below_margin: int = 0
    no_student_action: int = 0
    ties: int = 0
    student_supported: int = 0
    unknown_rows: int = 0
    failed_rows: int = 0
    repeated_rows: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    by_teacher: dict[str, TeacherVotes] = field(default_factory=dict)
    pair_count: int = 0

    def count(self, tally: Tally, verdict: Verdict, threshold: int, *, has_student_action: bool) -> bool:
        """Count a state that has answers; returns whether it makes a pair."""
        self.states_with_answers += 1
        self.histogram[verdict.support] += 1
        enough = verdict.support >= threshold
        is_pair = verdict.outcome == "pair" and has_student_action
        self.ties += enough and verdict.tie
        self.student_supported += bool(tally.with_student) and len(tally.with_student) >= verdict.support
        self.no_student_action += not has_student_action
        self.below_threshold += has_student_action and not enough
        self.below_margin += has_student_action and enough and not is_pair
        self.pair_count += is_pair
        for teacher in tally.with_student:
            self._add_votes(teacher, TeacherVotes(answers=1, with_student=1))
        for place, rival in enumerate(tally.rivals):
            for teacher in rival.teachers:
                self._add_votes(teacher, TeacherVotes(answers=1, in_pairs=is_pair and place == verdict.leader))
        return is_pair

    def add(self, other: PairReport, *, keep_pairs: bool = True) -> None:
        """Add another report's counts to this one, and its pairs unless they are written elsewhere."""
        if keep_pairs:
            self.pairs.extend(other.pairs)
        for one in fields(self):
            if one.name not in ("pairs", "histogram", "by_teacher"):
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.histogram.update(other.histogram)
        for teacher, votes in other.by_teacher.items():
            self._add_votes(teacher, votes)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, for JSON; "pairs" is the number of pairs."""
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("pairs", "pair_count")}
        counts["histogram"] = {str(support): count for support, count in sorted(self.histogram.items())}
        counts["by_teacher"] = {teacher: asdict(votes) for teacher, votes in sorted(self.by_teacher.items())}
        return {"pairs": self.pair_count, **counts}

    def _add_votes(self, teacher: str, more: TeacherVotes) -> None:
        votes = self.by_teacher.setdefault(teacher, TeacherVotes())
        votes.answers += more.answers
        votes.with_student += more.with_student
        votes.in_pairs += more.in_pairs


def extract_dpo_pairs(
    states: Iterable[TraceState],
    teacher_actions: Iterable[TeacherCallResult],
    agreement_threshold: int = 2,
    *,
    agreement: Agreement | None = None,
    min_margin: int = 0,
    tools: Sequence[dict[str, Any]] | None = None,
) -> list[DPOPair]:
    """Return at most one pair per state, in the order of the states: what teachers agreed on against what the student
    did.

    The most supported action wins, the earliest teacher's if several are; it is `chosen`, as its teacher wrote it but
    without thinking. If more teachers did what the student did, there is no pair. Rows with an error, or with a call
    that cannot be made, do not vote; of several rows of one teacher for one state, the last one that may does.

    Args:
        states: the steps of a trace, as `replay_trace` took them.
        teacher_actions: what `replay_trace` returned for them.
        agreement_threshold: how many teachers must agree.
        agreement: when two actions are the same: "exact" (the text, white space apart), "action" (the meaning of the
            tool calls, the likeness of free text; needs the extra "replay"), or a `Comparer` of your own, which gets
            two turns without thinking. None: as the rows were gated, and "exact" if they were not.
        min_margin: by how many teachers the winner must outnumber the next best action, the student's own included.
        tools: the definitions that the teachers were given, kept in each pair. Calls must fit them (`CallChecks`).

    Raises:
        ValueError: a threshold below 1, a negative margin, an unknown agreement, a state that lacks a key, or a
            `state_id` that comes twice.
    """
    report = extract_pairs_with_report(
        states, teacher_actions, agreement_threshold, agreement=agreement, min_margin=min_margin, tools=tools
    )
    return [pair.with_texts() for pair in report.pairs]


def extract_pairs_with_report(
    states: Iterable[TraceState],
    teacher_actions: Iterable[TeacherCallResult],
    agreement_threshold: int = 2,
    *,
    agreement: Agreement | None = None,
    min_margin: int = 0,
    tools: Sequence[dict[str, Any]] | None = None,
) -> PairReport:
    """`extract_dpo_pairs`, with the counts of states and rows. Pairs hold turns, and the states' own histories."""
    rows = list(teacher_actions)
    gates: list[GateSettings] = []
    for row in rows:
        add_gate(gates, row)
    rule = pair_rule(gates, agreement, agreement_threshold, min_margin, default_agreement="exact")
    if rule.warning is not None:
        logger.warning(rule.warning)
    return extract_by_rule(_steps(states), map(TeacherRow.of, rows), rule, tools=tools)


def pair_rule(
    gates: Sequence[GateSettings],
    agreement: Any,
    threshold: int | None,
    min_margin: int | None,
    *,
    default_agreement: str,
) -> PairRule:
    """Fill in what is None: the gates' value if all agree, or else the default (2 teachers, margin 0)."""
    if agreement is None:
        agreement = _common([gate["agreement"] for gate in gates], default_agreement)
        if agreement == "custom":
            agreement = default_agreement
    if threshold is None:
        threshold = _common([gate["agreement_threshold"] for gate in gates], 2)
    if min_margin is None:
        min_margin = _common([gate["min_margin"] for gate in gates], 0)
    used = gate_settings(agreement, threshold, min_margin)
    others = "; ".join(_described(gate) for gate in gates if gate != used)
    warning = (
        f"the rows were gated by {others}, and pairs are looked for by {_described(used)}: answers that the gate found "
        "needless are missing; use the gate's own, or replay without a gate (what is stored is not paid again)"
    )
    return PairRule(agreement, threshold, min_margin, warning if others else None)


def _common(values: list[Any], default: Any) -> Any:
    return values[0] if values and values.count(values[0]) == len(values) else default


def _described(gate: GateSettings) -> str:
    return f"agreement {gate['agreement']}, threshold {gate['agreement_threshold']}, margin {gate['min_margin']}"


def extract_by_rule(
    steps: Iterable[Step],
    rows: Iterable[TeacherRow],
    rule: PairRule,
    *,
    tools: Sequence[dict[str, Any]] | None = None,
) -> PairReport:
    """Return the pairs of a trace's steps, by a rule that is the same for all traces."""
    check_threshold(rule.threshold)
    if rule.min_margin < 0:
        raise ValueError(f"min_margin must not be negative, got {rule.min_margin}")
    same = comparer_for(rule.agreement)
    # All pairs share one object: writers recognize equal definitions by it.
    definitions = list(tools or ())
    checks = CallChecks(definitions)
    report = PairReport()
    rows_by_state: dict[str, list[TeacherRow]] = defaultdict(list)
    for row in rows:
        rows_by_state[row.state_id].append(row)
    seen: set[str] = set()
    for step in steps:
        if step.state_id in seen:
            raise ValueError(f"state_id {step.state_id!r} comes twice: each state needs an id of its own")
        seen.add(step.state_id)
        report.states += 1
        answers = _answers(rows_by_state.pop(step.state_id, []), checks, report)
        if not answers:
            continue
        student = bare_action(step.turn)
        tally = Tally.of(student, answers, same)
        verdict = decide(tally, rule.threshold, rule.min_margin)
        if report.count(tally, verdict, rule.threshold, has_student_action=_does_something(student)):
            report.pairs.append(_pair(step, student, tally, verdict, definitions))
    report.unknown_rows = sum(map(len, rows_by_state.values()))
    if report.unknown_rows:
        logger.warning("%d teacher rows are of states that were not given; they do not vote", report.unknown_rows)
    return report


def comparer_for(agreement: Agreement) -> Comparer:
    """Return the comparer for an `agreement` argument.

    Raises:
        ValueError: neither a known name nor callable, or a comparer that does not take turns.
        MissingExtraError: "action" without the extra "replay".
    """
    if agreement == "exact":
        return ExactComparer()
    if agreement == "action":
        # Imported here: it brings in the parsers of every kind of call.
        from composer_replication.teacher_replay.agreement.action import ActionComparer

        return ActionComparer()
    if isinstance(agreement, str) or not callable(agreement):
        raise ValueError(f"agreement must be 'exact', 'action' or a comparer, got {agreement!r}")
    probe = Turn("assistant", "probe")
    try:
        agreement(probe, probe)
    except (AttributeError, TypeError) as error:
        # Found before anything is paid for.
        raise ValueError(
            f"the comparer {agreement!r} cannot compare turns ({error}): it gets two traces.Turn; "
            "traces.action_text makes a text of one"
        ) from error
    return agreement


def _steps(states: Iterable[TraceState]) -> Iterator[Step]:
    for number, state in enumerate(states):
        check_state(state, f"states[{number}]")
        yield Step.of(state)


def _answers(rows: Sequence[TeacherRow], checks: CallChecks, report: PairReport) -> list[tuple[str, Turn]]:
    """Return each teacher's last usable answer, in the order in which the teachers come."""
    answers: dict[str, Turn | None] = {}
    for row in rows:
        action = None if row.turn is None or row.error is not None else bare_action(row.turn)
        # An answer without an action cannot be trained on, and one whose call cannot be made must not be.
        if action is None or not _does_something(action) or checks.problem(action) is not None:
            report.failed_rows += 1
            answers.setdefault(row.teacher_slug, None)
            continue
        report.repeated_rows += answers.get(row.teacher_slug) is not None
        answers[row.teacher_slug] = action
    return [(teacher, action) for teacher, action in answers.items() if action is not None]


def _does_something(turn: Turn) -> bool:
    return bool(turn.tool_calls or turn.content.strip())


def _pair(step: Step, student: Turn, tally: Tally, verdict: Verdict, tools: list[dict[str, Any]]) -> Pair:
    assert verdict.leader is not None
    winner = tally.rivals[verdict.leader]
    details = {"teachers": list(winner.teachers), "margin": verdict.margin, "similarity": winner.similarity}
    if tools:
        details["tools"] = tools
    return Pair(step.state_id, step.messages, winner.action, student, verdict.support, details)
