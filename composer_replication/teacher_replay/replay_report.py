"""The figures of a replay: counts, money and times, per teacher and in total."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from composer_replication.teacher_replay.answers import Reading
from composer_replication.teacher_replay.calls import Called
from composer_replication.teacher_replay.ledger import Balance
from composer_replication.teacher_replay.prices import Tokens, to_usd
from composer_replication.teacher_replay.prompts import Prompt
from composer_replication.teacher_replay.teachers import RemoteTeacher

# Estimated bytes per token, without a tokenizer.
BYTES_PER_TOKEN = 4


@dataclass
class TeacherUse:
    """One teacher's calls. Money in nano-dollars.

    `calls` were answered in this run. Of their answers and of those in the ledger, `answered` and `stored` can be used,
    `cut` ended at the token limit, and `unusable` cannot be used for another reason (`last_unusable`). `gated` and
    `no_room` were not asked: they could not change the outcome, or the budget did not allow them. `too_long` are
    prompts that do not fit the teacher. `uncached_cost` is the calls' cost without the provider's prompt cache;
    `cut_cost` and `unusable_cost` are the costs of such answers when they were made. `left_alone` is why a teacher was
    given up.
    """

    calls: int = 0
    answered: int = 0
    stored: int = 0
    cut: int = 0
    unusable: int = 0
    failed: int = 0
    gated: int = 0
    no_room: int = 0
    too_long: int = 0
    retries: int = 0
    cost: int = 0
    uncached_cost: int = 0
    stored_cost: int = 0
    cut_cost: int = 0
    unusable_cost: int = 0
    gated_cost: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    latencies: list[float] = field(default_factory=list)
    left_alone: str | None = None
    last_error: str | None = None
    last_too_long: str | None = None
    last_unusable: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; money in dollars."""
        return {
            "answered": self.answered,
            "stored": self.stored,
            "cut": self.cut,
            "cut_usd": to_usd(self.cut_cost),
            "unusable": self.unusable,
            "unusable_usd": to_usd(self.unusable_cost),
            "failed": self.failed,
            "not_asked_by_gate": self.gated,
            "not_asked_for_money": self.no_room,
            "too_long": self.too_long,
            "retries": self.retries,
            "spent_usd": to_usd(self.cost),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "latency_p50_s": self.latency(0.5),
            "latency_p95_s": self.latency(0.95),
            "left_alone": self.left_alone,
            "last_error": self.last_error,
            "last_unusable": self.last_unusable,
            "last_too_long": self.last_too_long,
        }

    def latency(self, quantile: float) -> float | None:
        """Seconds of the answered calls, at a quantile between 0 and 1."""
        if not self.latencies:
            return None
        return sorted(self.latencies)[max(0, math.ceil(quantile * len(self.latencies)) - 1)]


@dataclass
class ReplayReport:
    """A replay in numbers. `same_family` maps each teacher that is of a student's model family to that family."""

    teachers: dict[str, TeacherUse] = field(default_factory=dict)
    traces: int = 0
    states: int = 0
    same_family: dict[str, str] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)
    stopped: bool = False
    balance: Balance | None = None

    def use(self, teacher: RemoteTeacher) -> TeacherUse:
        """The figures of a teacher."""
        return self.teachers.setdefault(teacher.slug, TeacherUse())

    def count(self, teacher: RemoteTeacher, called: Called, reading: Reading | None = None) -> None:
        """Count a call with the reading of its answer, or a call that the budget did not allow."""
        use = self.use(teacher)
        use.retries += max(0, called.tries - 1)
        answer = called.answer
        if called.stopped:
            return
        if called.no_room:
            use.no_room += 1
        elif called.too_long:
            use.too_long += 1
            use.last_too_long = called.error
        elif answer is None:
            use.failed += 1
            use.last_error = called.error
        elif called.stored:
            use.stored_cost += answer.cost
        else:
            use.calls += 1
            use.cost += answer.cost
            full = Tokens(answer.tokens.prompt, answer.tokens.completion)
            use.uncached_cost += max(answer.cost, teacher.price.cost(full))
            use.prompt_tokens += answer.tokens.prompt
            use.cached_tokens += answer.tokens.cached
            use.completion_tokens += answer.tokens.completion
            use.latencies.append(answer.latency)
        if answer is None:
            return
        if reading is None or reading.problem is None:
            use.stored += called.stored
            use.answered += not called.stored
        elif reading.is_cut:
            use.cut += 1
            use.cut_cost += answer.cost
        else:
            use.unusable += 1
            use.unusable_cost += answer.cost
            use.last_unusable = reading.problem

    def count_gated(self, teacher: RemoteTeacher, prompt: Prompt, expected_output_tokens: int) -> None:
        """Count a call that the gate saved, at its price without a prompt cache."""
        use = self.use(teacher)
        use.gated += 1
        use.gated_cost += teacher.price.cost(Tokens(prompt.size // BYTES_PER_TOKEN, expected_output_tokens))

    @property
    def spent(self) -> int:
        """Nano-dollars of this run's answers."""
        return sum(use.cost for use in self.teachers.values())

    @property
    def asked(self) -> int:
        """Questions that were asked in this run; stored answers take no time."""
        return sum(use.calls + use.failed for use in self.teachers.values())

    @property
    def usable(self) -> int:
        """Answers that are an action, those of the ledger included."""
        return sum(use.answered + use.stored for use in self.teachers.values())

    @property
    def settled(self) -> int:
        """Questions (a state for a teacher) that are answered, have failed, or will not be asked."""
        return self.usable + sum(
            use.cut + use.unusable + use.failed + use.gated + use.no_room + use.too_long
            for use in self.teachers.values()
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON; money in dollars. What the prompt cache and the gate saved is an estimate."""
        uses = self.teachers.values()
        balance = self.balance
        return {
            "traces": self.traces,
            "states": self.states,
            "calls": sum(use.calls for use in uses),
            "answered": sum(use.answered for use in uses),
            "stored": sum(use.stored for use in uses),
            "cut": sum(use.cut for use in uses),
            "cut_usd": to_usd(sum(use.cut_cost for use in uses)),
            "unusable": sum(use.unusable for use in uses),
            "unusable_usd": to_usd(sum(use.unusable_cost for use in uses)),
            "failed": sum(use.failed for use in uses),
            "not_asked_by_gate": sum(use.gated for use in uses),
            "not_asked_for_money": sum(use.no_room for use in uses),
            "too_long": sum(use.too_long for use in uses),
            "spent_usd": to_usd(self.spent),
            "saved_by_ledger_usd": to_usd(sum(use.stored_cost for use in uses)),
            "saved_by_prompt_cache_usd": to_usd(sum(use.uncached_cost - use.cost for use in uses)),
            "saved_by_gate_usd": to_usd(sum(use.gated_cost for use in uses)),
            "budget": None
            if balance is None
            else {
                "spent_usd": to_usd(balance.spent),
                "in_doubt": balance.in_doubt,
                "in_doubt_usd": to_usd(balance.in_doubt_reserved),
                "in_flight_elsewhere": balance.in_flight,
                "repeated": balance.repeated,
            },
            "same_family": self.same_family,
            "excluded": self.excluded,
            "stopped": self.stopped,
            "teachers": {slug: use.as_dict() for slug, use in self.teachers.items()},
        }
