"""Logs as rows of token ids, and what a model says of them: log-probabilities without and with hints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from composer_replication.causal_lm import evaluating, run_causal_lm
from composer_replication.channels.scoring import at, hinted_states, row_sums, summed_logprobs, token_logprobs
from composer_replication.distillation.fused.losses import fused_token_logprobs
from composer_replication.evaluation.results import OnProgress, Outcome
from composer_replication.teacher_replay.records import Pair
from composer_replication.traces import Trace
from composer_replication.trainer.data_collator import ComposerDataCollator
from composer_replication.trainer.preference_rows import PairInput, PreferenceRow, PreferenceStats, preference_rows
from composer_replication.trainer.reference_logprobs import pair_logprobs
from composer_replication.trainer.trace_rows import TraceRow, rendered_traces


@dataclass
class RenderedLogs:
    """Logs as token ids: pairs, and rows of traces, each with what is known of it.

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
        """Render traces, each given with its session.

        Raises:
            ValueError: none of them can be rendered.
        """
        for row in rendered_traces([trace.example() for _, trace in traces], self.collator):
            session, trace = traces[row.session]
            self.rows.append(({"session": session, "trace": trace.trace_id}, row))

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
