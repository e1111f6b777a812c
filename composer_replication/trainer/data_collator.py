"""From traces to a batch: whole conversations as the chat template renders them, hinted contexts, preference pairs.

Shapes: R rows (one per conversation), S hinted turns, N pairs, P positions of channel 2, T columns.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence

from composer_replication._arguments import check_choice, check_count
from composer_replication.channels.hint_distillation import HintGenerator, SDPOTarget
from composer_replication.rendering import check_chat_template, renders_text_beside_calls
from composer_replication.traces import TraceExample, TraceState, TraceTurn, Turn
from composer_replication.trainer.preference_rows import PreferenceStats, preference_batch, preference_rows
from composer_replication.trainer.traces.conversations import conversations, trace_turns
from composer_replication.trainer.traces.rows import RowMaker, RowStats, TraceRow

__all__ = [
    "CollatorConfig",
    "CollatorStats",
    "ComposerDataCollator",
    "TokenizerLike",
    "TraceExample",
    "TraceState",
    "TraceTurn",
]

logger = logging.getLogger(__name__)


class TokenizerLike(Protocol):
    """What the collator needs of a tokenizer; a fast one of transformers with a chat template has it."""

    @property
    def pad_token_id(self) -> int | None: ...

    def __call__(self, text: Any, **kwargs: Any) -> Any: ...

    def apply_chat_template(self, messages: Any, **kwargs: Any) -> Any: ...


@dataclass
class CollatorConfig:
    """Settings of `ComposerDataCollator`.

    Args:
        max_seq_len: the longest row, and the longest hinted context, in tokens.
        max_dpo_seq_len: the longest prompt and response together, in tokens.
        pad_token_id: for tokenizers that have none; one that has its own is padded with that. Masks come from lengths,
            so either may be a token that also stands in the text.
        ignore_index: what `sdpo_loss_mask` has where there is no loss.
        enable_sdpo: make channel 2's fields.
        hint_generator: `(error_kind, error_meta) -> hint`, None where there is nothing to say. Without it, channel 2
            is off.
        enable_replay_dpo: make channel 3's fields.
        rlvr_reward_key: where an example has its reward.
        sdpo_target: the hint goes before, and the loss on, the turn that made the failing call ("erring_turn") or the
            next turn of the assistant behind the failure ("recovery_turn").
        hint_role: of the hint's message; "user" is taken where the template does not accept it.
        train_on_errors: False leaves the turns that the student got wrong out of `response_mask`. They stay in the
            context, and in channel 2.
        max_windows: how many rows a conversation that is too long may become. The first is its end; each further one
            ends with an error that would be lost, the latest first.
        system_prompt: put first in every conversation, unless the trace has one of its own.
        strip_thinking: leave the assistant's thinking out of the text.
    """

    max_seq_len: int = 4096
    max_dpo_seq_len: int = 2048
    pad_token_id: int = 0
    ignore_index: int = -100
    enable_sdpo: bool = True
    hint_generator: HintGenerator | None = None
    enable_replay_dpo: bool = True
    rlvr_reward_key: str = "final_reward"
    sdpo_target: SDPOTarget = "erring_turn"
    hint_role: str = "system"
    train_on_errors: bool = True
    max_windows: int = 1
    system_prompt: str | None = None
    strip_thinking: bool = True

    def __post_init__(self) -> None:
        check_count("max_seq_len", self.max_seq_len)
        check_count("max_dpo_seq_len", self.max_dpo_seq_len)
        check_count("max_windows", self.max_windows)
        check_choice("sdpo_target", self.sdpo_target, ("erring_turn", "recovery_turn"))
        if self.ignore_index > 0:
            raise ValueError(f"ignore_index must not be above 0, which marks loss in a mask; got {self.ignore_index}")


@dataclass
class CollatorStats(RowStats, PreferenceStats):
    """What a collator has seen and left out so far; in a data loader's worker, of that worker alone.

    `examples` came in, `examples_without_turns` of them had nothing to learn and gave no row. `rewards_missing` were
    taken for 0. The rest is described in `RowStats` and `PreferenceStats`.
    """

    examples: int = 0
    examples_without_turns: int = 0
    rewards_missing: int = 0


@dataclass
class ComposerDataCollator:
    """Makes batches of traces and their preference pairs.

    Every conversation is rendered once by the chat template, tools included. A trace whose context begins anew becomes
    several rows, each with the trace's reward. `stats` counts what was made and what was left out.
    """

    tokenizer: TokenizerLike
    config: CollatorConfig = field(default_factory=CollatorConfig)
    stats: CollatorStats = field(default_factory=CollatorStats)
    _checked: set[tuple[Any, bool]] = field(default_factory=set, init=False, repr=False)

    def __call__(self, batch: Sequence[TraceExample]) -> dict[str, torch.Tensor]:
        """A batch that `compose_loss` takes, once channel 3's reference log-probabilities have been added to it.

        Returns:
            `input_ids`, `attention_mask`, `response_mask` (R, T) and `rewards` (R,). If there are hinted turns also
            `ctx_teacher_input_ids`, `ctx_teacher_attention_mask`, `sdpo_loss_mask` (S, T'; the mask is 1 on the turn,
            else `ignore_index`), `sdpo_student_index`, `sdpo_teacher_index` (P, 2; row and column of one token in
            `input_ids` and in `ctx_teacher_input_ids`). If there are pairs also
            `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}` (N, T'').

        Raises:
            ValueError: an empty batch, or one in which no assistant turn is to be learned; a turn that cannot be read;
                a reward that is no finite number; a chat template that refuses a conversation, leaves tool calls out
                or rewrites earlier turns.
        """
        if not batch:
            raise ValueError("the batch is empty: there is nothing to collate")
        rows = [row for example in batch for row in self.rows(example)]
        if not rows:
            raise ValueError(f"none of the batch's {len(batch)} examples has an assistant turn to learn from")
        out = self.collate(rows)
        if self.config.enable_replay_dpo:
            out |= self._preferences(batch)
        return out

    def collate(self, rows: Sequence[TraceRow]) -> dict[str, torch.Tensor]:
        """Rows that were made before, as the batch that `__call__` gives without its pairs."""
        out = self._padded("", [row.ids for row in rows])
        out["response_mask"] = _stacked([row.response_mask for row in rows], 0)
        out["rewards"] = torch.tensor([row.reward for row in rows])
        return out | self._hinted(rows)

    def rows(self, example: TraceExample) -> list[TraceRow]:
        """One trace as rows: one for each conversation that it is made of, or several if it is long.

        Raises:
            ValueError: a turn that cannot be read, a reward that is no finite number, or a chat template that refuses
                the trace.
        """
        config, stats = self.config, self.stats
        stats.examples += 1
        turns = trace_turns(example)
        tools = example.get("tools") or None
        self._check_template(turns, bool(tools))
        maker = RowMaker(
            tokenizer=self.tokenizer,
            max_length=config.max_seq_len,
            max_windows=config.max_windows,
            hint_generator=config.hint_generator if config.enable_sdpo else None,
            target=config.sdpo_target,
            hint_role=config.hint_role,
            train_on_errors=config.train_on_errors,
        )
        try:
            rows = [
                row
                for conversation in conversations(
                    turns, system_prompt=config.system_prompt, strip_thinking=config.strip_thinking
                )
                for row in maker.rows(conversation, turns, tools, stats)
            ]
        except ValueError as error:
            raise ValueError(f"trace {example.get('trace_id', '?')!r}: {error}") from error
        stats.examples_without_turns += not rows
        reward = self._reward(example)
        return [replace(row, reward=reward) for row in rows]

    def _check_template(self, turns: Sequence[Turn], has_tools: bool) -> None:
        """Once for each template, and once more when the first tool call comes."""
        tools = has_tools or any(turn.tool_calls or turn.role == "tool" for turn in turns)
        key = (getattr(self.tokenizer, "chat_template", None), tools)
        if key not in self._checked:
            check_chat_template(self.tokenizer, tools=tools, growing=True)
            if tools and not renders_text_beside_calls(self.tokenizer):
                logger.warning("the chat template leaves out what the assistant says beside a tool call")
            self._checked.add(key)

    def _reward(self, example: TraceExample) -> float:
        reward: Any = example.get(self.config.rlvr_reward_key)
        if reward is None:
            self.stats.rewards_missing += 1
            return 0.0
        if not math.isfinite(reward):
            raise ValueError(
                f"trace {example.get('trace_id', '?')!r} has the reward {reward!r}: a reward must be a finite number"
            )
        return float(reward)

    def _hinted(self, rows: Sequence[TraceRow]) -> dict[str, torch.Tensor]:
        sites = [(row, site) for row, made in enumerate(rows) for site in made.sites]
        if not sites:
            return {}
        out = self._padded("ctx_teacher_", [site.ids for _, site in sites])
        student, teacher, masks = [], [], []
        for number, (row, site) in enumerate(sites):
            columns = range(site.start, site.stop)
            student += [(row, column) for column in columns]
            teacher += [(number, column + site.shift) for column in columns]
            # A hinted context ends with the turn that the loss is on.
            masks.append([self.config.ignore_index] * (len(site.ids) - len(columns)) + [1] * len(columns))
        out["sdpo_loss_mask"] = _stacked(masks, self.config.ignore_index)
        out["sdpo_student_index"] = torch.tensor(student)
        out["sdpo_teacher_index"] = torch.tensor(teacher)
        return out

    def _preferences(self, batch: Sequence[TraceExample]) -> dict[str, torch.Tensor]:
        pairs = [pair for example in batch for pair in example.get("dpo_pairs") or ()]
        rows = preference_rows(self.tokenizer, pairs, max_length=self.config.max_dpo_seq_len, stats=self.stats)
        return preference_batch(rows, pad_token_id=self._pad_token_id) if rows else {}

    @property
    def _pad_token_id(self) -> int:
        own = self.tokenizer.pad_token_id
        return self.config.pad_token_id if own is None else own

    def _padded(self, prefix: str, rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        return {
            f"{prefix}input_ids": _stacked(rows, self._pad_token_id),
            f"{prefix}attention_mask": _stacked([[1] * len(row) for row in rows], 0),
        }


def _stacked(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    """Rows of different lengths as one tensor, filled up on the right."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=filler)
