"""The settings of all channels together, as both trainers take them: by section, or by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

from typing_extensions import TypedDict, Unpack

from composer_replication._arguments import check_keywords
from composer_replication.channels.fields import CountOrZero, Keyword, Settings, TrainerKind, keyword_reference
from composer_replication.channels.hint_distillation import HintDistillation, HintKeywords, RolloutHintKeywords
from composer_replication.channels.policy import CrossEntropy, CrossEntropyKeywords, Grpo, GrpoKeywords
from composer_replication.channels.preference import Preference, PreferenceKeywords

T = TypeVar("T")


@dataclass(frozen=True)
class Watch(Settings):
    """Warnings and measurements while the channels train."""

    inactive_patience: Annotated[CountOrZero, Keyword("inactive_patience")] = 20
    """Warn when a channel with a weight has had no data, or channel 3's chosen_reward was negative, for this many
    optimiser steps; 0: never."""
    gradient_share_every: Annotated[CountOrZero, Keyword("gradient_share_steps")] = 50
    """Optimiser steps between measurements of each channel's share of the gradient; 0: never. A measurement costs one
    backward pass per channel, and a second set of gradients, in one micro-batch."""


class WatchKeywords(TypedDict, total=False):
    """The trainers' keywords of `Watch`, for type checkers and editors."""

    inactive_patience: int
    gradient_share_steps: int


class TraceKeywords(CrossEntropyKeywords, HintKeywords, PreferenceKeywords, WatchKeywords, total=False):
    """The channel settings that a trainer on traces takes as keywords."""


class RolloutKeywords(GrpoKeywords, RolloutHintKeywords, PreferenceKeywords, WatchKeywords, total=False):
    """The channel settings that a trainer on rollouts takes as keywords."""


class AllKeywords(TraceKeywords, RolloutKeywords, total=False):
    """The channel settings by keyword."""


@dataclass(frozen=True, init=False)
class ChannelSettings:
    """The settings of the channels: give whole sections, single settings by the trainers' keywords, or both.

    `ChannelSettings(alpha_sdpo=0.3)` is `ChannelSettings(sdpo=HintDistillation(alpha=0.3))`.

    Raises:
        ValueError: a setting out of range.
        TypeError: there is no such keyword; the message has the nearest one.
    """

    lm: CrossEntropy
    grpo: Grpo
    sdpo: HintDistillation
    replay: Preference
    watch: Watch

    def __init__(
        self,
        *,
        lm: CrossEntropy | None = None,
        grpo: Grpo | None = None,
        sdpo: HintDistillation | None = None,
        replay: Preference | None = None,
        watch: Watch | None = None,
        **keywords: Unpack[AllKeywords],
    ) -> None:
        check_keywords("ChannelSettings", keywords, AllKeywords.__annotations__)
        sections: dict[str, Settings] = {
            "lm": lm or CrossEntropy(),
            "grpo": grpo or Grpo(),
            "sdpo": sdpo or HintDistillation(),
            "replay": replay or Preference(),
            "watch": watch or Watch(),
        }
        for name, section in sections.items():
            object.__setattr__(self, name, section.updated(keywords))

    def updated(self, **keywords: Unpack[AllKeywords]) -> ChannelSettings:
        """A copy with other values."""
        return ChannelSettings(**{one.name: getattr(self, one.name) for one in fields(self)}, **keywords)


def keyword_docs(trainer: TrainerKind) -> dict[str, str]:
    """The keywords of a trainer for its channels, each with its documentation."""
    sections = (CrossEntropy, Grpo, HintDistillation, Preference, Watch)
    return {name: text for one in sections for name, text in keyword_reference(one, trainer).items()}


def documents_keywords(trainer: TrainerKind) -> Callable[[T], T]:
    """Add the documentation of a trainer's channel settings to a docstring; of a function, those that it takes."""

    def with_docs(documented: T) -> T:
        known = keyword_docs(trainer)
        taken = inspect.signature(documented).parameters if inspect.isfunction(documented) else known
        lines = [f"        {name}: {' '.join(text.split())}" for name, text in known.items() if name in taken]
        documented.__doc__ = "\n".join([(documented.__doc__ or "").rstrip(), "", "    Channel settings:", *lines])
        return documented

    return with_docs
