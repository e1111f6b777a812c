"""`TraceTrainer`: the three channels on logs alone, without rollouts; channel 1 is cross-entropy on the traces.

For training with traces and pairs and no environment. The collator renders, `channels/` has the losses, and
self-teachers, gate, TAID, pairs and checkpoints are those of `ComposerReplicationTrainer`.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from typing_extensions import Unpack

from composer_replication._arguments import check_keywords, keywords_of
from composer_replication.causal_lm import HiddenStates, run_causal_lm
from composer_replication.channels.policy import lm_channel
from composer_replication.channels.settings import ChannelSettings, TraceKeywords, documents_keywords
from composer_replication.chat_templates import TemplatedTokenizer, configured_ends
from composer_replication.distillation.fused.head import LogitHead
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.traces import TraceExample
from composer_replication.trainer.channel_engine import (
    ChannelEngine,
    JudgedHints,
    StepEnds,
    check_not_empty,
    check_policy,
    gradient_shares,
    site_numbers,
)
from composer_replication.trainer.channel_log import MetricsFile
from composer_replication.trainer.checkpoint import ChannelCheckpoints
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.gate_calibration import RowCalibration
from composer_replication.trainer.pairs import given_pairs, replay_pairs
from composer_replication.trainer.trace_rows import check_same_rows, rendered_traces, rows_digest

# The teacher's side of a batch is kept in it, from where the step's tokens are counted to where the loss is.
_KEPT = "sdpo_kept"
_TEACHER_STATES = "sdpo_teacher_states"


@documents_keywords("traces")
class TraceTrainer(ChannelCheckpoints, Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` over `TraceExample`s.

    Args:
        model: a causal LM, or a PEFT model around one.
        args: of the training; `gradient_accumulation_steps`, precision and the rest work as ever.
        train_dataset: the traces; their `dpo_pairs` go to channel 3.
        processing_class: the tokenizer, with a chat template.
        eval_dataset: traces to evaluate channel 1 on.
        settings: the channels' settings; each of them is a keyword as well (`alpha_sdpo=0.3`), which comes first.
        collator: how traces are rendered, once, before training; None: hints of templates and the error's own text, the
            turns that erred left out of channel 1, and up to eight rows of a trace that is too long for one.
        replay_dataset: more preference pairs, or a file of them (.jsonl, .parquet).
        reference_cache: folder for the reference's log-probabilities; None: `output_dir/reference_logprobs`.
        callbacks: as in `Trainer`.
        optimizers: as in `Trainer`.

    Raises:
        ValueError: no traces, a setting out of range, or a model whose vocabulary does not fit its tokenizer.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        train_dataset: Sequence[TraceExample],
        processing_class: Any,
        *,
        eval_dataset: Sequence[TraceExample] | None = None,
        settings: ChannelSettings | None = None,
        collator: CollatorConfig | None = None,
        replay_dataset: Iterable[Any] | str | os.PathLike[str] | None = None,
        reference_cache: str | Path | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        **keywords: Unpack[TraceKeywords],
    ) -> None:
        known = [*keywords_of(TraceTrainer.__init__), *TraceKeywords.__annotations__]
        check_keywords("TraceTrainer", keywords, known)
        settings = (settings or ChannelSettings()).updated(**keywords)
        lm, hints, replay = settings.lm, settings.sdpo, settings.replay
        check_not_empty("train_dataset", train_dataset)
        check_policy(model, processing_class)
        config = collator or CollatorConfig(
            hint_generator=as_collator_hint(LayeredHints()),
            **hints.of_sites(),
            train_on_errors=lm.train_on_errors,
            max_windows=8,
        )
        templated = TemplatedTokenizer(processing_class, processing_class.chat_template, end_ids=configured_ends(model))
        self.collator = ComposerDataCollator(tokenizer=templated, config=config)
        rows = rendered_traces(train_dataset, self.collator)
        if lm.weight == 0:
            rows = [row for row in rows if row.sites]
            if not rows:
                raise ValueError(
                    "no trace has a failing turn with a hint, and lm_weight is 0: there is nothing to learn"
                )
        self._rows_digest = rows_digest(rows)
        # Rows do not hold arguments of the model, and must reach the collator unchanged.
        args = copy.copy(args)
        args.remove_unused_columns = False
        super().__init__(
            model=model,
            args=args,
            train_dataset=rows,
            eval_dataset=None if eval_dataset is None else rendered_traces(eval_dataset, self.collator),
            processing_class=processing_class,
            data_collator=self.collator.collate,
            callbacks=list(callbacks or ()),
            optimizers=optimizers,
        )
        # Each channel has its own normaliser: what Trainer counts as items of a batch is none of them.
        self.model_accepts_loss_kwargs = False
        self._replay_batch_size = replay.batch_size or max(1, args.per_device_train_batch_size // 2)
        given = [*given_pairs(replay_dataset), *(pair for one in train_dataset for pair in one.get("dpo_pairs") or ())]
        pairs = None
        if replay.beta > 0 and given:
            pairs = replay_pairs(
                self,
                templated,
                given,
                replay,
                batch_size=self._replay_batch_size,
                reference_cache=reference_cache,
            )
        self.channels = ChannelEngine(
            self.model,
            settings,
            pairs=pairs,
            channels={"lm": lm.weight, "sdpo": hints.alpha, "replay": replay.beta},
            reduce=lambda sums: self.accelerator.reduce(sums, reduction="sum"),
            processes=self.accelerator.num_processes,
            seed=args.seed,
        )
        self._calibration = None
        if "sdpo" in self.channels.calibrations:
            self._calibration = RowCalibration(
                self.channels.calibrations["sdpo"], rows, self.collator, size=args.per_device_train_batch_size
            )
        self._tokens = {"lm": 1.0, "sdpo": 1.0}
        self._teacher_head: LogitHead | None = None
        self._step_metrics: dict[str, list[float]] = {}
        self.add_callback(StepEnds(self))
        self.add_callback(MetricsFile(Path(args.output_dir, "metrics.jsonl")))

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The micro-batches of an optimiser step, with the teacher's side of channel 2, and their tokens counted.

        So every token of the step has the same weight, whichever micro-batch it is in, and hints that the gate leaves
        out do not count.
        """
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self._calibration is not None:
            self._calibration.measure(self._changes)
        batches = [self._judged(self._prepare_inputs(batch)) for batch in batches]
        self._tokens = self._counted(batches)
        return batches, items

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """lm + α·sdpo + β·replay over a batch of the collator's; evaluation has channel 1 alone."""
        if return_outputs:
            raise ValueError("TraceTrainer gives losses, no outputs")
        student = run_causal_lm(model, inputs["input_ids"], inputs.get("attention_mask"))
        nothing = student.hidden.sum() * 0.0
        lm = lm_channel(student, inputs) if _lm_tokens(inputs) else None
        if not model.training:
            return nothing if lm is None else lm.loss
        self.saw_tokens(_lm_tokens(inputs))
        settings, log = self.channels.settings, self.channels.log
        # Gradients are averaged over the processes, and the loss is divided by the number of micro-batches after this.
        accumulation: int = self.current_gradient_accumulation_steps
        processes: int = self.accelerator.num_processes
        parts: dict[str, torch.Tensor | None] = {}
        if lm is not None and settings.lm.weight > 0:
            loss = lm.loss * (lm.active_tokens * processes / self._tokens["lm"])
            parts["lm"] = settings.lm.weight * loss
            log.add("lm", "loss", loss / processes)
            log.add("lm", "active_tokens", lm.active_tokens)
            log.add("lm", "active_rows", inputs["input_ids"].shape[0])
        if _KEPT in inputs:
            assert self._teacher_head is not None
            judged = JudgedHints(inputs[_KEPT], HiddenStates(inputs[_TEACHER_STATES], self._teacher_head))
            weight = processes / max(self._tokens["sdpo"], 1.0)
            step = self.state.global_step
            hint = self.channels.hint_loss(student, inputs, judged, token_weight=weight, channel="sdpo", step=step)
            parts["sdpo"] = None if hint is None else self.channels.alpha(step) * hint
        elif settings.sdpo.alpha > 0:
            log.explain("sdpo", {"no_error_site": 1})
        pairs = self.channels.replay_batch(self._replay_batch_size, self.accelerator.device)
        if pairs is not None:
            parts["replay"] = settings.replay.beta * self.channels.replay_loss(model, pairs, share=1.0 / accumulation)
        if self.channels.is_share_step(self.state.global_step, self.accelerator.sync_gradients):
            for channel, part in gradient_shares(parts, self.model.parameters()).items():
                self._step_metrics.setdefault(f"channels/{channel}/gradient_share", []).append(part)
        return torch.stack([nothing, *(part for part in parts.values() if part is not None)]).sum() * accumulation

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[torch.Tensor, None, None]:
        """Channel 1's loss."""
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, self._prepare_inputs(inputs)).detach(), None, None

    def _changes(self, batch: dict[str, torch.Tensor]) -> list[float]:
        batch = self._prepare_inputs(batch)
        with self.accelerator.autocast():
            return self.channels.changes(batch, site_numbers(batch))

    def _judged(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.channels.settings.sdpo.alpha == 0 or "ctx_teacher_input_ids" not in batch:
            return batch
        with self.accelerator.autocast():
            judged = self.channels.judge(batch, site_numbers(batch), channel="sdpo")
        self._teacher_head = judged.teacher.head
        return {**batch, _KEPT: judged.kept_P, _TEACHER_STATES: judged.teacher.hidden}

    def _counted(self, batches: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, float]:
        """The tokens that carry loss in an optimiser step, of all processes."""
        lm = sum(_lm_tokens(batch) for batch in batches)
        hinted = sum(int(batch[_KEPT].sum()) for batch in batches if _KEPT in batch)
        counts = self.accelerator.reduce(torch.tensor([float(lm), float(hinted)], device=self.accelerator.device))
        return dict(zip(("lm", "sdpo"), counts.tolist(), strict=True))

    def end_step(self) -> None:
        """Update teacher, TAID and metrics after an optimiser step, and warn when a channel is inactive."""
        for name, value in self.channels.end_step(self.state.global_step, self.accelerator.device).items():
            self._step_metrics.setdefault(name, []).append(value)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the channels' means since the last time."""
        for name, values in self._step_metrics.items():
            measured = [value for value in values if not math.isnan(value)]
            if measured:
                logs[name] = sum(measured) / len(measured)
        self._step_metrics = {}
        super().log(logs, start_time)

    def own_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Means that are not logged yet, and a digest of the rows that are trained on."""
        return {}, {"metrics": self._step_metrics, "rows": self._rows_digest}

    def load_own_state(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `own_state` gave."""
        check_same_rows(numbers["rows"], self._rows_digest)
        self._step_metrics = {name: list(values) for name, values in numbers["metrics"].items()}


def _lm_tokens(batch: Mapping[str, torch.Tensor]) -> int:
    """Tokens that channel 1 learns; nothing predicts those of the first column."""
    return int((batch["response_mask"][:, 1:] > 0).sum())
