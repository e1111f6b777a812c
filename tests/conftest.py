"""Shared set-up: no network, repeatable numbers, and the tiny models and tokenizers that most tests use."""

from __future__ import annotations

import os
from pathlib import Path

# Before anything imports a Hugging Face library: tests use what is on the disk, and nothing else.
os.environ["HF_HUB_OFFLINE"] = "1"
# What they convert or cache stays in the clone.
os.environ["HF_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "huggingface")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Some virtual machines announce AMX and then kill the process that uses it. `doctor` finds this out for users.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

from typing import Any

import pytest
import torch
from hypothesis import settings
from sampling import multinomial
from tiers import TIERS

from composer_replication._tiny import tiny_model, tiny_tokenizer

# Tensors here are tiny: a second thread costs more in hand-overs than it computes, above all on a busy machine.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.nodeid.removeprefix("tests/")
        for tier, places in TIERS.items():
            if place.startswith(places):
                item.add_marker(tier)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("fuzz")


@pytest.fixture(autouse=True)
def _same_draws_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "multinomial", multinomial)


@pytest.fixture(scope="session", params=["qwen2_5", "llama3_1"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """A tokenizer with a real chat template; tests that take it run once per template."""
    return tiny_tokenizer(request.param)


@pytest.fixture(scope="session")
def qwen_tokenizer() -> Any:
    return tiny_tokenizer("qwen2_5")


@pytest.fixture(params=["qwen2", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    """A fresh random model whose vocabulary fits the tiny tokenizers; once per architecture."""
    return tiny_model(request.param, vocab_size=640, seed=1)


@pytest.fixture
def qwen_model() -> Any:
    return tiny_model("qwen2", vocab_size=640, seed=1)
