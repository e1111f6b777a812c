"""Families of models by their names."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.families import model_families, model_family, same_family

NAMES = {
    "claude": [
        "claude-opus-4-5-20251101",
        "anthropic/claude-opus-4.7",
        "anthropic/claude-3.5-sonnet:beta",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "sonnet",
        "anthropic/something-new",
    ],
    "gpt": [
        "gpt-5.1-codex-max",
        "openai/gpt-4o",
        "o3",
        "o4-mini",
        "openai/gpt-oss-120b",
        "chatgpt-4o-latest",
        "azure/gpt-4.1",
    ],
    "deepseek": ["deepseek/deepseek-v4-pro", "accounts/fireworks/models/deepseek-v3", "deepseek-chat"],
    "qwen": ["Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-coder:7b", "qwq-32b", "qwen3-coder"],
    "llama": ["meta-llama/Llama-3.1-8B-Instruct", "llama3.1:8b", "codellama-34b", "nvidia/llama-3.1-nemotron-70b"],
    "mistral": ["mistral-large", "mistralai/Mixtral-8x7B", "codestral-latest", "devstral-small", "ministral-8b"],
    "gemini": ["google/gemini-2.5-pro", "gemma-3-27b-it", "models/gemini-1.5-flash"],
    "kimi": ["moonshotai/kimi-k2", "kimi-k2.5", "moonshot-v1-8k"],
    "glm": ["z-ai/glm-4.7", "glm-4.6", "chatglm3-6b"],
    "grok": ["x-ai/grok-code-fast-1", "grok-4"],
    "composer": ["cursor/composer-2.5"],
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in NAMES.items() for name in names])
def test_a_name_tells_the_family(family: str, name: str) -> None:
    assert model_family(name) == family
    assert model_family(name.upper()) == family


@pytest.mark.parametrize("name", ["", "my-finetune", "<synthetic>", "o200k", "unknown/model", "gptzero-like", "photon"])
def test_a_name_that_says_nothing_is_of_no_family(name: str) -> None:
    assert model_family(name) is None


def test_a_distilled_model_is_of_both_families() -> None:
    assert model_families("deepseek/deepseek-r1-distill-qwen-32b") == {"deepseek", "qwen"}
    assert model_family("deepseek-r1-distill-llama-70b") == "llama"
    assert same_family(["qwen2.5-coder"], "deepseek/deepseek-r1-distill-qwen-32b")
    assert same_family(["deepseek-v3"], "deepseek/deepseek-r1-distill-qwen-32b")
    assert not same_family(["llama-3"], "deepseek/deepseek-r1-distill-qwen-32b")


def test_of_several_names_the_first_counts() -> None:
    assert model_families("qwen-2-llama-merge") == {"qwen"}


def test_a_teacher_of_the_students_family() -> None:
    assert same_family(["claude-opus-4-5-20251101"], "anthropic/claude-opus-4.7")
    assert same_family([None, "gpt-5", "claude-haiku-4-5"], "anthropic/claude-opus-4.7")
    assert not same_family(["claude-opus-4-5-20251101"], "openai/gpt-5")
    assert not same_family([], "openai/gpt-5")
    assert not same_family(["my-finetune", None], "other-finetune")
