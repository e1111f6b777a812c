"""Families of models, by name."""

from __future__ import annotations


def model_family(name: str) -> str | None:
    """The family that a model's name tells, None if it tells none."""
    return next((family for family in ("claude", "gpt", "deepseek", "qwen") if family in name.lower()), None)
