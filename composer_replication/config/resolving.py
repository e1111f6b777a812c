"""Defaults that depend on other settings, filled in before anything is checked: what is then printed is what will run.

A channel whose weight nobody gave and that has nothing to learn from is off: its weight is resolved to 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

BUNDLED_MODEL = "smollm2"
_LORA_LEARNING_RATE = 1e-5  # ten times that of all weights, as adapters want it


class Belonging(NamedTuple):
    """A setting that means something only if `choice` is `value`; `default` is what it then is, if nothing is given."""

    section: tuple[str, ...]
    setting: str
    choice: str
    value: str
    default: Any


BELONGINGS = (
    Belonging(("channels", "sdpo"), "taid", "wrapper", "taid", {}),
    Belonging(("channels", "sdpo"), "entropy_opd_h_max", "wrapper", "entropy_opd", None),
    Belonging(("channels", "sdpo"), "ema_rate", "teacher", "ema", 0.05),
    Belonging(("channels", "sdpo"), "trust_region_mix", "teacher", "trust_region", 0.05),
    Belonging(("channels", "replay"), "dpo_beta", "variant", "dpo", 0.1),
    Belonging(("channels", "replay"), "simpo_beta", "variant", "simpo", 2.0),
    Belonging(("channels", "replay"), "simpo_gamma", "variant", "simpo", 1.0),
    Belonging(("optimizer",), "muon", "name", "muon", {}),
)
# What is chosen if nothing is said, as in `sections`.
_CHOSEN = {"wrapper": "none", "teacher": "ema", "variant": "dpo", "name": "adamw"}


def resolved(given: Any) -> Any:
    """What a user wrote, with those defaults; values of a wrong type are left for the checks to find."""
    if not isinstance(given, Mapping):
        return given
    config = _copied(given)
    for path in (("data",), ("channels",), ("channels", "grpo"), ("channels", "sdpo"), ("channels", "replay")):
        _section(config, path)
    _section(config, ("optimizer",))
    model, data, environment = config.get("model"), config["data"], config.get("environment")
    if isinstance(model, dict):
        if model.get("name") == BUNDLED_MODEL:
            model.setdefault("chat_template", "qwen2_5")
        if model.get("lora") is not None and isinstance(config["optimizer"], dict):
            config["optimizer"].setdefault("lr", _LORA_LEARNING_RATE)
    for belonging in BELONGINGS:
        section = _section(config, belonging.section)
        chosen = isinstance(section, dict) and section.get(belonging.choice, _CHOSEN[belonging.choice])
        if isinstance(section, dict) and chosen == belonging.value and section.get(belonging.setting) is None:
            section[belonging.setting] = belonging.default
    if isinstance(config["channels"], dict) and environment is None and config["channels"].get("lm") is None:
        config["channels"]["lm"] = {}
    if isinstance(data, dict):
        sdpo, replay = (_section(config, ("channels", name)) for name in ("sdpo", "replay"))
        if isinstance(sdpo, dict) and data.get("traces") is None and environment is None:
            sdpo.setdefault("alpha", 0.0)
        if isinstance(replay, dict) and not data.get("pairs"):
            replay.setdefault("beta", 0.0)
    return config


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    return value


def _section(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The section at a path; one that is missing, or empty (all its keys commented out), is put there."""
    section: Any = config
    for name in path:
        if not isinstance(section, dict):
            return None
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
    return section
