"""The collator: traces become a batch of whole conversations, hinted contexts and preference pairs.

Shapes: R rows (one per conversation), S hinted turns, N pairs, P positions of channel 2, T columns.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_args

import torch

from composer_replication._arguments import check_choice, check_count
from composer_replication.channels.hint_distillation import HintGenerator, SDPOTarget
from composer_replication.chat_templates import drops_parallel_calls
from composer_replication.rendering import hinted_rows, padded, stacked
from composer_replication.template_check import check_chat_template, keeps_text_beside_calls
from composer_replication.traces import TraceExample, TraceState, TraceTurn, Turn
from composer_replication.trainer.conversations import conversations, trace_turns
from composer_replication.trainer.preference_rows import PreferenceStats, preference_batch, preference_rows
from composer_replication.trainer.trace_rows import RowStats, TraceRow, conversation_rows

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
    """The tokenizer methods that the collator calls; a fast transformers tokenizer with a chat template has them."""

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
        pad_token_id: for tokenizers that have none; a tokenizer's own comes first. Masks come from lengths, so either
            may be a token that also occurs in the text.
        ignore_index: the value of `sdpo_loss_mask` where there is no loss.
        enable_sdpo: make channel 2's fields.
        hint_generator: `(error_kind, error_meta) -> hint`, None where there is nothing to say. Without it, channel 2
            is off.
        enable_replay_dpo: make channel 3's fields.
        rlvr_reward_key: the key of an example's reward.
        sdpo_target: the hint goes before, and the loss applies to, the turn that made the failing call ("erring_turn")
            or the assistant's next turn after the failure ("recovery_turn").
        hint_role: the role of the hint's message; "user" where the template does not accept it.
        max_hinted_turns: the most hinted turns of a conversation, the first ones that went wrong; None: all.
        strip_attempt: take the failing call out of its hint, where the error quotes it.
        train_on_errors: False leaves the turns that the student got wrong out of `response_mask`. They stay in the
            context, and in channel 2.
        max_windows: the most rows that a conversation that is too long may become. Each begins with system prompt,
            tools and task, and leaves out whole messages after these. The first ends with the last turn to learn,
            further ones with errors that would be lost, then with other turns, the latest first.
        system_prompt: put first in every conversation, unless the trace has one of its own.
        strip_thinking: leave the assistant's thinking out. If not, the chat template gets it as `reasoning_content`,
            and must show it.
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
    max_hinted_turns: int | None = None
    strip_attempt: bool = False

    def __post_init__(self) -> None:
        check_count("max_seq_len", self.max_seq_len)
        check_count("max_dpo_seq_len", self.max_dpo_seq_len)
        check_count("max_windows", self.max_windows)
        check_count("max_hinted_turns", self.max_hinted_turns)
        check_choice("sdpo_target", self.sdpo_target, get_args(SDPOTarget))
        if self.ignore_index > 0:
            raise ValueError(f"ignore_index must not be above 0, which marks loss in a mask; got {self.ignore_index}")


@dataclass
class CollatorStats(RowStats, PreferenceStats):
    """Counts of what a collator has seen and left out so far; in a data loader's worker, of that worker alone.

    `examples` came in, `examples_without_turns` of them had nothing to learn, or nothing that fits into a row.
    `rewards_missing` counts missing rewards, taken as 0. The rest is described in `RowStats` and `PreferenceStats`.
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
    _checked: dict[tuple[Any, ...], bool] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, batch: Sequence[TraceExample]) -> dict[str, torch.Tensor]:
        """Return a batch that `compose_loss` takes once channel 3's reference log-probabilities are added to it.

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
            why = self.stats.nothing_fits(self.config.max_seq_len)
            raise ValueError(
                f"none of the batch's {len(batch)} examples has an assistant turn to learn from"
                f"{': ' if why else ''}{why}"
            )
        out = self.collate(rows)
        if self.config.enable_replay_dpo:
            out |= self._preferences(batch)
        return out

    def collate(self, rows: Sequence[TraceRow]) -> dict[str, torch.Tensor]:
        """Collate rows that were made before, as `__call__` does but without pairs."""
        out = padded("", [row.ids for row in rows], self._pad_token_id)
        out["response_mask"] = stacked([row.response_mask for row in rows], 0)
        out["rewards"] = torch.tensor([row.reward for row in rows])
        if any(row.sites for row in rows):
            sites = [row.sites for row in rows]
            out |= hinted_rows([row.ids for row in rows], sites, pad_token_id=self._pad_token_id)
            mask = torch.full_like(out["ctx_teacher_input_ids"], self.config.ignore_index)
            mask[tuple(out["sdpo_teacher_index"].T)] = 1
            out["sdpo_loss_mask"] = mask
        return out

    def rows(self, example: TraceExample) -> list[TraceRow]:
        """Return one trace as rows: one for each of its conversations, or several if that is too long.

        Raises:
            ValueError: a turn that cannot be read, a reward that is no finite number, or a chat template that refuses
                the trace.
        """
        config, stats = self.config, self.stats
        stats.examples += 1
        turns = trace_turns(example)
        tools = example.get("tools") or None
        says_beside_calls = self._check_template(turns, bool(tools))
        made = conversations(turns, system_prompt=config.system_prompt, strip_thinking=config.strip_thinking)
        try:
            if any(len(turn.tool_calls) > 1 for turn in turns) and drops_parallel_calls(self.tokenizer):
                raise ValueError("the chat template shows the first of several calls in a turn alone")
            rows = [
                row
                for conversation in made
                for row in conversation_rows(
                    self.tokenizer,
                    conversation if says_beside_calls else conversation.without_text_beside_calls(),
                    turns,
                    config=config,
                    tools=tools,
                    stats=stats,
                )
            ]
        except ValueError as error:
            raise ValueError(f"trace {example.get('trace_id', '?')!r}: {error}") from error
        stats.examples_without_turns += not rows
        reward = self._reward(example)
        return [replace(row, reward=reward) for row in rows]

    def _check_template(self, turns: Sequence[Turn], has_tools: bool) -> bool:
        """Check each template once, and once more when the first tool call or the first thinking comes; return whether
        it shows what turns say beside their calls."""
        config = self.config
        tools = has_tools or any(turn.tool_calls or turn.role == "tool" for turn in turns)
        thinking = not config.strip_thinking and any(turn.thinking for turn in turns)
        key = (getattr(self.tokenizer, "chat_template", None), tools, thinking)
        if key not in self._checked:
            hints = config.enable_sdpo and config.hint_generator is not None
            check_chat_template(self.tokenizer, tools=tools, growing=True, hints=hints, thinking=thinking)
            self._checked[key] = not tools or keeps_text_beside_calls(self.tokenizer)
            if not self._checked[key]:
                logger.warning("the chat template has no place for what turns say beside their calls: it is left out")
        return self._checked[key]

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

    def _preferences(self, batch: Sequence[TraceExample]) -> dict[str, torch.Tensor]:
        pairs = [pair for example in batch for pair in example.get("dpo_pairs") or ()]
        rows = preference_rows(self.tokenizer, pairs, max_length=self.config.max_dpo_seq_len, stats=self.stats)
        return preference_batch(rows, pad_token_id=self._pad_token_id) if rows else {}

    @property
    def _pad_token_id(self) -> int:
        own = self.tokenizer.pad_token_id
        return self.config.pad_token_id if own is None else own
