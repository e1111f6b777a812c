"""Held-out traces and pairs: how likely a model finds what is in logs. Nothing is generated.

- a pair: whether the chosen action is likelier than the rejected one
- a turn that erred, as it was logged: its log-probability, without and with its hint in the context
- its correction, where the next turn made the same call and it worked: its log-probability in place of the turn that
  erred, and whether it is the likelier of the two
- all other turns: their perplexity, which rises when a model forgets
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from composer_replication.chat_templates import TemplatedTokenizer, configured_ends
from composer_replication.envs.contract import task_id
from composer_replication.evaluation.intervals import perplexity
from composer_replication.evaluation.log_scores import RenderedLogs
from composer_replication.evaluation.overlap import Trained, check_sessions, read_traces
from composer_replication.evaluation.results import Measure, OnProgress, Outcome, measure
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.ingestion.store import load_traces
from composer_replication.run.arguments import collator_config
from composer_replication.run.configuration import Config
from composer_replication.run.held_out import Sessions, is_held_out
from composer_replication.teacher_replay.pair_files import training_pairs
from composer_replication.teacher_replay.records import Pair, bare_action
from composer_replication.traces import Trace, Turn, dump_json
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.preference_rows import PairInput, conversational
from composer_replication.trainer.sites import is_erring


@dataclass
class LogEvaluation:
    """Sessions of logs that a model has not been trained on, to be scored by one model or several.

    Use `of_files`. `warnings` are for the user.
    """

    settings: dict[str, Any]
    traces: list[tuple[str, Trace]]
    pairs: list[tuple[str, PairInput]]
    collator: CollatorConfig
    batch_size: int
    warnings: list[str] = field(default_factory=list)
    kind = "logs"

    @classmethod
    def of_files(
        cls,
        traces: Path | None,
        pairs: Sequence[Path],
        *,
        trained: Sequence[Trained] = (),
        share: float | None = None,
        config: Config | None = None,
        batch_size: int = 8,
    ) -> LogEvaluation:
        """Read the held-out part of logs, and refuse it if training has seen some of it.

        Args:
            traces: a folder that `ingest` wrote.
            pairs: files that `pairs` or `normalize` wrote.
            trained: what the models were trained on.
            share: of the sessions that is held out; None: all of them are used.
            config: the run's, for lengths and thinking; None: the defaults.
            batch_size: rows of a forward pass.

        Raises:
            ValueError: something cannot be read, no session is left, or a session was trained on.
            FileNotFoundError: there are no traces in the folder.
        """
        read = [] if traces is None else list(load_traces(traces))
        sessions = Sessions(chain(read, *map(read_traces, trained)))
        known = [(sessions.of(one.trace_id), one) for one in read]
        given = [(sessions.of_pair(one) or _opening(one), one) for file in pairs for one in training_pairs(file)]
        kept = {name for name, _ in (*known, *given) if share is None or is_held_out(name, share)}
        found = len({name for name, _ in (*known, *given)})
        if not kept:
            why = "there is none" if not found else f"none of {found} is held out with a share of {share:g}"
            raise ValueError(f"no session to evaluate: {why}; raise --held-out-share, or use --all")
        unnamed = sum(check_sessions(kept, one, sessions) for one in trained)
        lost = f"{unnamed} training pairs do not say which session they come from: overlap with them is not checked"
        return cls(
            {
                "traces": None if traces is None else str(traces),
                "pairs": list(map(str, pairs)),
                "held_out_share": share,
                "sessions": len(kept),
            },
            [one for one in known if one[0] in kept],
            [one for one in given if one[0] in kept],
            _collator_config(config),
            batch_size,
            [lost] if unnamed else [],
        )

    def outcomes(self, model: Any, tokenizer: Any, on_progress: OnProgress = lambda *_: None) -> list[Outcome]:
        """Score everything by a model; its tokenizer is noted in the settings, as results depend on it.

        Raises:
            ValueError: nothing can be rendered with the tokenizer's chat template.
        """
        words = hashlib.sha256(repr((sorted(tokenizer.get_vocab().items()), tokenizer.chat_template)).encode())
        self.settings["tokenizer"] = words.hexdigest()[:16]
        templated = TemplatedTokenizer(tokenizer, tokenizer.chat_template, end_ids=configured_ends(model))
        logs = RenderedLogs(ComposerDataCollator(templated, self.collator))
        if self.traces:
            logs.add_traces(self.traces)
            corrected = ((name, pair) for name, trace in self.traces for pair in corrections(trace))
            logs.add_pairs(corrected, "correction")
        logs.add_pairs(self.pairs)
        if not logs.rows:
            raise ValueError(f"nothing can be scored: {logs.stats.dropped() or 'there is no pair'}")
        if dropped := logs.stats.dropped():
            self.warnings = list(dict.fromkeys([*self.warnings, f"some pairs are left out: {dropped}"]))
        return logs.score(model, batch_size=self.batch_size, on_progress=on_progress)

    def measures(self, outcomes: Sequence[Outcome]) -> dict[str, Measure]:
        """See `log_measures`."""
        return log_measures(outcomes)


def _collator_config(config: Config | None) -> CollatorConfig:
    """As training renders, with hints before every turn that erred; these turns are not among the good ones."""
    hints = as_collator_hint(LayeredHints())
    own = CollatorConfig(hint_generator=hints, max_windows=8) if config is None else collator_config(config)
    return replace(own, enable_sdpo=True, sdpo_target="erring_turn", max_hinted_turns=None, train_on_errors=False)


def _opening(pair: PairInput) -> str:
    """Name the session of a pair that does not say it: by its messages up to the first of the user."""
    messages: Sequence[Mapping[str, Any]] = conversational(pair, 0)["prompt"]
    users = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    return f"opening {task_id([dict(one) for one in messages[: users[0] + 1 if users else 1]])}"


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
    for kind in ("pair", "correction"):
        if pairs := of_kind.get(kind):
            by_token = partial(_is_preferred, per_token=True)
            made[f"{kind}s_preferred"] = measure(pairs, "session", _is_preferred, is_share=True)
            made[f"{kind}s_preferred_per_token"] = measure(pairs, "session", by_token, is_share=True)
            name = "chosen" if kind == "pair" else kind
            made[f"{name}_logprob"] = _logprob(pairs, "chosen_logprob", "chosen_tokens")
            if kind == "pair":  # the turn that a correction corrects is an erring turn
                made["rejected_logprob"] = _logprob(pairs, "rejected_logprob", "rejected_tokens")
    if erring := of_kind.get("erring_turn"):
        made["erring_turn_logprob"] = _logprob(erring, "logprob")
        made["erring_turn_hinted_logprob"] = _logprob(erring, "hinted_logprob")
    if good := of_kind.get("good_turns"):
        made["good_turns_perplexity"] = _logprob(good, "logprob")._replace(statistic=perplexity)
    return made


def _logprob(outcomes: Sequence[Outcome], key: str, tokens: str = "tokens") -> Measure:
    return measure(outcomes, "session", lambda one: one[key], lambda one: one[tokens])


def _is_preferred(pair: Outcome, *, per_token: bool = False) -> bool:
    chosen, rejected = (
        pair[f"{side}_logprob"] / (pair[f"{side}_tokens"] if per_token else 1) for side in ("chosen", "rejected")
    )
    return bool(chosen > rejected)
