"""What can be chosen between, under one name each for settings, configuration, trainers and collator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

TeacherKind = Literal["ema", "frozen", "live", "trust_region"]
HintSourceKind = Literal["error", "sibling", "both"]
SDPOTarget = Literal["erring_turn", "recovery_turn"]
Routing = Literal["none", "srpo"]

HintGenerator = Callable[[str, Mapping[str, Any] | None], str | None]
"""From an error's kind and its `error_meta` to a hint, or None; `as_collator_hint` makes one."""
