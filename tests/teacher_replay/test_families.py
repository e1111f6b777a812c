"""Families of models by their names."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.teachers import model_families, shared_family

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
    assert model_families(name) == {family}
    assert model_families(name.upper()) == {family}


@pytest.mark.parametrize("name", ["", "my-finetune", "<synthetic>", "o200k", "unknown/model", "gptzero-like", "photon"])
def test_a_name_that_says_nothing_is_of_no_family(name: str) -> None:
    assert not model_families(name)


def test_a_distilled_model_is_of_both_families() -> None:
    assert model_families("deepseek/deepseek-r1-distill-qwen-32b") == {"deepseek", "qwen"}
    assert shared_family(model_families("deepseek/deepseek-r1-distill-qwen-32b"), ["qwen2.5-coder"]) == "qwen"
    assert shared_family(model_families("deepseek/deepseek-r1-distill-qwen-32b"), ["deepseek-v3"]) == "deepseek"
    assert shared_family(model_families("deepseek/deepseek-r1-distill-qwen-32b"), ["llama-3"]) is None


def test_of_several_names_the_first_counts() -> None:
    assert model_families("qwen-2-llama-merge") == {"qwen"}


def test_a_teacher_of_the_students_family() -> None:
    assert shared_family(model_families("anthropic/claude-opus-4.7"), ["claude-opus-4-5-20251101"]) == "claude"
    assert shared_family(model_families("anthropic/claude-opus-4.7"), [None, "gpt-5", "claude-haiku-4-5"]) == "claude"
    assert shared_family(model_families("openai/gpt-5"), ["claude-opus-4-5-20251101"]) is None
    assert shared_family(model_families("openai/gpt-5"), []) is None
    assert shared_family(model_families("other-finetune"), ["my-finetune", None]) is None
