"""Fragments: the trainable parameters, each once, in order, in parts of about the same size."""

from __future__ import annotations

import pytest
from torch import nn

from composer_replication.diloco.fragments import trainable_fragments


def tied_model() -> nn.Module:
    model = nn.Module()
    model.embed = nn.Embedding(10, 4)
    model.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
    model.norm = nn.BatchNorm1d(4)
    model.head = nn.Linear(4, 10, bias=False)
    model.head.weight = model.embed.weight
    return model


def test_every_trainable_parameter_is_in_one_fragment_itself() -> None:
    model = tied_model()
    model.blocks[1].requires_grad_(False)
    fragments = trainable_fragments(model, 3)
    names = [name for fragment in fragments for name in fragment.parameter_names]
    assert names == [name for name, one in model.named_parameters() if one.requires_grad]
    assert "head.weight" not in names  # tied: once, as the embedding
    assert not any(name.startswith("blocks.1.") for name in names)
    own = [parameter for fragment in fragments for parameter in fragment.parameters()]
    assert all(mine is its for mine, its in zip(own, (p for p in model.parameters() if p.requires_grad), strict=True))
    assert not [buffer for fragment in fragments for buffer in fragment.buffers()]


def test_fragments_are_about_equal_in_size() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    sizes = [sum(one.numel() for one in fragment.parameters()) for fragment in trainable_fragments(model, 4)]
    assert sizes == [3 * 72] * 4


def test_one_large_parameter_leaves_something_for_the_others() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(2, 2), nn.Linear(2, 2))
    fragments = trainable_fragments(model, 4)
    assert [len(fragment.parameter_names) for fragment in fragments] == [1, 1, 1, 3]
    last_is_large = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 100))
    assert [len(fragment.parameter_names) for fragment in trainable_fragments(last_is_large, 4)] == [1] * 4


def test_adapters_travel_alone() -> None:
    from peft import LoraConfig, get_peft_model

    from composer_replication._tiny import tiny_model

    model = get_peft_model(tiny_model("qwen2", vocab_size=64, hidden_size=16, seed=0), LoraConfig(r=2))
    (fragment,) = trainable_fragments(model, 1)
    assert fragment.parameter_names
    assert all("lora_" in name for name in fragment.parameter_names)


def test_too_many_fragments_are_refused() -> None:
    with pytest.raises(ValueError, match="Linear has 2 trainable parameters, too few for 3 fragments"):
        trainable_fragments(nn.Linear(2, 2), 3)
    with pytest.raises(ValueError, match="count"):
        trainable_fragments(nn.Linear(2, 2), 0)
    assert [one.parameter_names for one in trainable_fragments(nn.Linear(2, 2), 2)] == [("weight",), ("bias",)]
