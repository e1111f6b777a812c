"""Preference pairs: where enough teachers agree on an action that is not the student's.

Call it trace by trace and merge the reports (`PairReport.add`): then memory holds one trace's answers, however many
traces there are.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from composer_replication.teacher_replay.agreement.comparison import Comparer, ExactComparer
from composer_replication.teacher_replay.agreement.votes import Tally, Verdict, check_threshold, decide
from composer_replication.teacher_replay.answers import CallChecks
from composer_replication.teacher_replay.gate_settings import GateSettings, PairRule, add_gate, pair_rule
from composer_replication.teacher_replay.pair_report import PairReport
from composer_replication.teacher_replay.records import DPOPair, TeacherCallResult, check_state
from composer_replication.traces import TraceState, Turn, action_text, parse_action

logger = logging.getLogger(__name__)

Agreement: TypeAlias = Literal["exact", "action"] | Comparer


def extract_dpo_pairs(
    states: Iterable[TraceState],
    teacher_actions: Iterable[TeacherCallResult],
    agreement_threshold: int = 2,
    *,
    agreement: Agreement | None = None,
    min_margin: int = 0,
    tools: Sequence[dict[str, Any]] | None = None,
) -> list[DPOPair]:
    """At most one pair per state, in the order of the states: what teachers agreed on, against what the student did.

    The most supported action wins, the earliest teacher's if several are; it is `chosen`, as its teacher wrote it but
    without thinking. If more teachers did what the student did, there is no pair. Rows with an error, or with a call
    that cannot be made, do not vote; of several rows of one teacher for one state, the last one that may does.

    Args:
        states: the steps of a trace, as `replay_trace` took them.
        teacher_actions: what `replay_trace` returned for them.
        agreement_threshold: how many teachers must agree.
        agreement: when two actions are the same: "exact" (the text, white space apart), "action" (the meaning of the
            tool calls, the likeness of free text; needs the extra "replay"), or a `Comparer` of your own. None: as the
            rows were gated, and "exact" if they were not.
        min_margin: by how many teachers the winner must outnumber the next best action, the student's own included.
        tools: the definitions that the teachers were given, kept in each pair. Calls must fit them (`CallChecks`).

    Raises:
        ValueError: a threshold below 1, a negative margin, an unknown agreement, a state that lacks a key, or a
            `state_id` that comes twice.
    """
    report = extract_pairs_with_report(
        states, teacher_actions, agreement_threshold, agreement=agreement, min_margin=min_margin, tools=tools
    )
    return [{**pair, "state_messages": list(pair["state_messages"])} for pair in report.pairs]


def extract_pairs_with_report(
    states: Iterable[TraceState],
    teacher_actions: Iterable[TeacherCallResult],
    agreement_threshold: int = 2,
    *,
    agreement: Agreement | None = None,
    min_margin: int = 0,
    tools: Sequence[dict[str, Any]] | None = None,
) -> PairReport:
    """`extract_dpo_pairs`, with what became of every state and every row; histories are the states' own, not lists."""
    rows = list(teacher_actions)
    gates: list[GateSettings] = []
    for row in rows:
        add_gate(gates, row)
    rule = pair_rule(gates, agreement, agreement_threshold, min_margin, default_agreement="exact")
    if rule.warning is not None:
        logger.warning(rule.warning)
    return extract_by_rule(states, rows, rule, tools=tools)


def extract_by_rule(
    states: Iterable[TraceState],
    teacher_actions: Iterable[TeacherCallResult],
    rule: PairRule,
    *,
    tools: Sequence[dict[str, Any]] | None = None,
) -> PairReport:
    """`extract_pairs_with_report` by a rule that was settled before: for a trace of many."""
    check_threshold(rule.threshold)
    if rule.min_margin < 0:
        raise ValueError(f"min_margin must not be negative, got {rule.min_margin}")
    same = comparer_for(rule.agreement)
    # One object for all pairs: writers tell by it that they have the same.
    definitions = list(tools or ())
    checks = CallChecks(definitions)
    report = PairReport()
    rows_by_state: dict[str, list[TeacherCallResult]] = defaultdict(list)
    for row in teacher_actions:
        rows_by_state[row["state_id"]].append(row)
    seen: set[str] = set()
    for number, state in enumerate(states):
        check_state(state, f"states[{number}]")
        state_id = state["state_id"]
        if state_id in seen:
            raise ValueError(f"state_id {state_id!r} comes twice: each state needs an id of its own")
        seen.add(state_id)
        report.states += 1
        answers = _answers(rows_by_state.pop(state_id, []), checks, report)
        if not answers:
            continue
        student = parse_action(state["student_action"])
        tally = Tally.of(student, answers, same)
        verdict = decide(tally, rule.threshold, rule.min_margin)
        if report.count(tally, verdict, rule.threshold, has_student_action=bool(action_text(student).strip())):
            report.pairs.append(_pair(state, student, tally, verdict, definitions))
    report.unknown_rows = sum(map(len, rows_by_state.values()))
    if report.unknown_rows:
        logger.warning("%d teacher rows are of states that were not given; they do not vote", report.unknown_rows)
    return report


def comparer_for(agreement: Agreement) -> Comparer:
    """The comparer that an `agreement` argument means.

    Raises:
        ValueError: neither a known name nor callable.
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
    return agreement


def _answers(rows: Sequence[TeacherCallResult], checks: CallChecks, report: PairReport) -> list[tuple[str, Turn]]:
    """Each teacher's last answer that can be used, in the order in which the teachers come."""
    answers: dict[str, Turn | None] = {}
    for row in rows:
        teacher, text = row["teacher_slug"], row["response_text"]
        action = parse_action(text if text is not None and row["error"] is None else "")
        # An answer without an action cannot be trained on, and one whose call cannot be made must not be.
        if not action_text(action).strip() or checks.problem(action) is not None:
            report.failed_rows += 1
            answers.setdefault(teacher, None)
            continue
        if answers.get(teacher) is not None:
            report.repeated_rows += 1
        answers[teacher] = action
    return [(teacher, action) for teacher, action in answers.items() if action is not None]


def _pair(state: TraceState, student: Turn, tally: Tally, verdict: Verdict, tools: list[dict[str, Any]]) -> DPOPair:
    assert verdict.leader is not None
    winner = tally.rivals[verdict.leader]
    pair = DPOPair(
        state_id=state["state_id"],
        state_messages=state["messages"],
        chosen=action_text(winner.action),
        rejected=action_text(student),
        n_teachers_agreeing=verdict.support,
        teachers=list(winner.teachers),
        margin=verdict.margin,
        similarity=winner.similarity,
    )
    if tools:
        pair["tools"] = tools
    return pair
