"""Held-out traces and pairs: how likely a model finds what is in logs. Nothing is generated.

- a pair: whether the chosen action is likelier than the rejected one
- a turn that erred, as it was logged: its log-probability, without and with its hint in the context
- its correction, where the next turn made the same call and it worked: its log-probability in place of the turn that
  erred, and whether it is the likelier of the two
- all other turns: their perplexity, which rises when a model forgets
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from composer_replication.causal_lm import evaluating, run_causal_lm
from composer_replication.channels.scoring import at, hinted_states, row_sums, summed_logprobs, token_logprobs
from composer_replication.distillation.fused.losses import fused_token_logprobs
from composer_replication.evaluation.intervals import perplexity
from composer_replication.evaluation.results import Measure, Outcome, measure
from composer_replication.teacher_replay.records import Pair, bare_action
from composer_replication.traces import Trace, Turn, dump_json
from composer_replication.trainer.data_collator import ComposerDataCollator
from composer_replication.trainer.preference_rows import PairInput, PreferenceRow, PreferenceStats, preference_rows
from composer_replication.trainer.reference_logprobs import pair_logprobs
from composer_replication.trainer.sites import is_erring
from composer_replication.trainer.trace_rows import TraceRow, rendered_traces

OnProgress = Callable[[int, int], None]


@dataclass
class HeldOutLogs:
    """Logs as token ids, rendered once for all models: pairs, and rows of traces, each with what is known of it.

    `stats` counts the pairs that cannot be used, the collator's counts turns.
    """

    collator: ComposerDataCollator
    rows: list[tuple[Outcome, PreferenceRow | TraceRow]] = field(default_factory=list)
    stats: PreferenceStats = field(default_factory=PreferenceStats)

    def add_pairs(self, pairs: Iterable[tuple[str, PairInput]], kind: str = "pair") -> None:
        """Render pairs, each given with its session."""
        known: list[Outcome] = []

        def watched() -> Iterator[PairInput]:
            for session, pair in pairs:
                before = self.stats.pairs
                yield pair
                # Only now it is known whether it became a row.
                if self.stats.pairs > before:
                    named = {"pair": pair.state_id} if isinstance(pair, Pair) else {}
                    known.append({"kind": kind, "session": session, **named})

        limit = self.collator.config.max_dpo_seq_len
        rows = preference_rows(self.collator.tokenizer, watched(), max_length=limit, stats=self.stats)
        self.rows += zip(known, rows, strict=True)

    def add_traces(self, traces: Sequence[tuple[str, Trace]]) -> None:
        """Render traces, each given with its session, and the corrections in them.

        Raises:
            ValueError: none of them can be rendered.
        """
        for row in rendered_traces([trace.example() for _, trace in traces], self.collator):
            session, trace = traces[row.session]
            self.rows.append(({"session": session, "trace": trace.trace_id}, row))
        self.add_pairs(((session, pair) for session, trace in traces for pair in corrections(trace)), "correction")

    @torch.no_grad()
    def score(self, model: nn.Module, *, batch_size: int, on_progress: OnProgress = lambda *_: None) -> list[Outcome]:
        """Return what a model says of every row, in the order in which they were added."""
        scored: dict[int, list[Outcome]] = {}
        for kind, outcomes_of in ((PreferenceRow, _pair_outcomes), (TraceRow, _turn_outcomes)):
            places = [place for place, (_, row) in enumerate(self.rows) if isinstance(row, kind)]
            # The longest first: if memory does not suffice, that shows at once.
            places.sort(key=lambda place: _length(self.rows[place][1]), reverse=True)
            for start in range(0, len(places), batch_size):
                batch = places[start : start + batch_size]
                made = outcomes_of(model, self.collator, [self.rows[place][1] for place in batch])
                for place, outcomes in zip(batch, made, strict=True):
                    scored[place] = [{**self.rows[place][0], **one} for one in outcomes]
                on_progress(len(scored), len(self.rows))
        return [one for place in sorted(scored) for one in scored[place]]


def _length(row: PreferenceRow | TraceRow) -> int:
    return len(row.ids) if isinstance(row, TraceRow) else sum(map(len, row))


def _pair_outcomes(model: nn.Module, collator: ComposerDataCollator, rows: Sequence[Any]) -> list[list[Outcome]]:
    device, pad = next(model.parameters()).device, collator.tokenizer.pad_token_id or 0
    logprobs_N2 = pair_logprobs(model, rows, pad, len(rows), device)
    return [
        [
            {
                "chosen_logprob": chosen,
                "chosen_tokens": len(row.chosen_ids),
                "rejected_logprob": rejected,
                "rejected_tokens": len(row.rejected_ids),
            }
        ]
        for row, (chosen, rejected) in zip(rows, logprobs_N2.tolist(), strict=True)
    ]


def _turn_outcomes(model: nn.Module, collator: ComposerDataCollator, rows: Sequence[Any]) -> list[list[Outcome]]:
    """Return the outcomes of each row: its good turns together, and every turn that erred and has a hint."""
    device = next(model.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in collator.collate(rows).items()}
    ids, mask = batch["input_ids"], batch["response_mask"]
    outcomes: list[list[Outcome]] = [[] for _ in rows]
    with evaluating(model):
        states = run_causal_lm(model, ids, batch["attention_mask"])
    if bool(mask.any()):
        sums, tokens = summed_logprobs(states, ids, mask).tolist(), mask.sum(1).tolist()
        for row, logprob, number in zip(outcomes, sums, tokens, strict=True):
            row += [{"kind": "good_turns", "logprob": logprob, "tokens": number}] if number else []
    if "ctx_teacher_input_ids" in batch:
        student_P2, teacher_P2 = batch["sdpo_student_index"], batch["sdpo_teacher_index"]
        hinted, contexts = hinted_states(model, batch, teacher_P2), batch["ctx_teacher_input_ids"]
        bare_P = token_logprobs(states, ids, student_P2)
        hinted_P = fused_token_logprobs(hinted.hidden, at(contexts, teacher_P2), hinted.head)
        # Every hinted context is a site, in the order of the rows.
        bare, with_hint = (row_sums(one_P, teacher_P2, len(contexts)).tolist() for one_P in (bare_P, hinted_P))
        sites = [(number, site) for number, row in enumerate(rows) for site in row.sites]
        for (number, site), logprob, hinted_logprob in zip(sites, bare, with_hint, strict=True):
            erring = {"kind": "erring_turn", "logprob": logprob, "hinted_logprob": hinted_logprob}
            outcomes[number].append({**erring, "tokens": len(site.tokens()), "error": site.kind, "hint": site.hint})
    return outcomes


def corrections(trace: Trace) -> Iterator[Pair]:
    """Yield a pair for every turn that erred and was put right by the next: chosen is what the next turn did.

    The next turn calls the same tools, or other tools with the same values, and no call of it failed.
    """
    failed = {call.id for _, call, answer in trace.calls() if answer is None or answer.is_error or answer.masked}
    for step, following in pairwise(trace.steps()):
        turn, after = step.turn, following.turn
        is_own = is_erring(turn) and not (turn.error_meta or {}).get("reported_by")
        goes_on = len(following.messages) > len(step.messages)
        if is_own and goes_on and _retries(turn, after) and not failed & {call.id for call in after.tool_calls}:
            details = {"tools": trace.tools} if trace.tools else {}
            yield Pair(step.state_id, step.messages, bare_action(after), bare_action(turn), 0, details)


def _retries(failed: Turn, turn: Turn) -> bool:
    def names(one: Turn) -> list[str]:
        return sorted(call.name for call in one.tool_calls)

    def values(one: Turn) -> list[str]:
        return sorted(dump_json(value) for call in one.tool_calls for value in call.arguments.values())

    return bool(turn.tool_calls) and (names(failed) == names(turn) or values(failed) == values(turn) != [])


def log_measures(outcomes: Sequence[Outcome]) -> dict[str, Measure]:
    """Return what is measured in scored logs, by session; log-probabilities are per token."""
    of_kind: dict[str, list[Outcome]] = {}
    for one in outcomes:
        of_kind.setdefault(one["kind"], []).append(one)
    made: dict[str, Measure] = {}
    for kind, chosen in (("pair", "chosen"), ("correction", "correction")):
        if pairs := of_kind.get(kind):
            made |= {
                f"{kind}s_preferred": measure(pairs, "session", lambda one: float(_margin(one) > 0), is_share=True),
                f"{kind}s_preferred_per_token": measure(
                    pairs, "session", lambda one: float(_margin(one, per_token=True) > 0), is_share=True
                ),
                f"{chosen}_logprob": _logprob(pairs, "chosen_logprob", "chosen_tokens"),
                f"{'rejected' if kind == 'pair' else 'corrected'}_logprob": _logprob(
                    pairs, "rejected_logprob", "rejected_tokens"
                ),
            }
    if erring := of_kind.get("erring_turn"):
        made["erring_turn_logprob"] = _logprob(erring, "logprob")
        made["erring_turn_hinted_logprob"] = _logprob(erring, "hinted_logprob")
    if good := of_kind.get("good_turns"):
        made["good_turns_logprob"] = _logprob(good, "logprob")
        made["good_turns_perplexity"] = made["good_turns_logprob"]._replace(statistic=perplexity)
    return made


def _logprob(outcomes: Sequence[Outcome], key: str, tokens: str = "tokens") -> Measure:
    return measure(outcomes, "session", lambda one: one[key], lambda one: one[tokens])


def _margin(pair: Outcome, *, per_token: bool = False) -> float:
    chosen, rejected = (
        pair[f"{side}_logprob"] / (pair[f"{side}_tokens"] if per_token else 1) for side in ("chosen", "rejected")
    )
    return float(chosen - rejected)
