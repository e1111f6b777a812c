"""The policy that training starts from: a model with its adapters off, and what tells one such policy from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from composer_replication.causal_lm import without_wrappers

# Values of a config that change nothing in a forward pass, and that trainers set as they like.
_IDLE_SETTINGS = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
_CHUNK = 1 << 22


@contextmanager
def reference_policy(model: nn.Module) -> Iterator[nn.Module]:
    """The module that acts as the reference while the block runs.

    Of a PEFT model it is the model itself with its adapters off, and with the original of every module that is trained
    as a whole (`modules_to_save`). Any other model is its own reference, before its first step. Adapters that train
    biases of the base model (`bias="all"`) change the reference itself: take it before the first step as well.
    """
    policy: Any = without_wrappers(model)
    if not _has_adapters(policy):
        yield policy
        return
    # Switching adapters on again makes them all trainable, the frozen ones too.
    trainable = [(parameter, parameter.requires_grad) for parameter in policy.parameters()]
    try:
        with policy.disable_adapter():
            yield policy
    finally:
        for parameter, requires_grad in trainable:
            parameter.requires_grad_(requires_grad)


def acts_as_reference(model: nn.Module) -> bool:
    """Whether no adapter takes part in the model's forward pass now."""
    policy: Any = without_wrappers(model)
    return not _has_adapters(policy) or bool(getattr(policy, "_adapters_disabled", False))


def model_fingerprint(model: nn.Module) -> str:
    """A hash of the reference policy's weights and of its config; a PEFT model has that of the model under it.

    Every weight takes part. The sums are of integers, so they come out alike on any device and with any number of
    threads.

    Raises:
        ValueError: weights that are not here in one piece.
    """
    base: Any = without_wrappers(model)
    if _has_adapters(base):
        base = base.get_base_model()
        weights = _weights_under_adapters(base)
    else:
        weights = base.state_dict()
    digest = hashlib.sha256(json.dumps(_settings(base), sort_keys=True, default=str).encode())
    for name, tensor in sorted(weights.items(), key=lambda item: item[0]):
        if not isinstance(tensor, torch.Tensor):
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {_checksums(name, tensor)}\n".encode())
    return digest.hexdigest()


def _has_adapters(model: nn.Module) -> bool:
    return hasattr(model, "disable_adapter") and hasattr(model, "peft_config")


def _settings(base: nn.Module) -> dict[str, Any]:
    config: Any = getattr(base, "config", None)
    settings: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    return {
        name: value for name, value in settings.items() if name not in _IDLE_SETTINGS and not name.endswith("_token_id")
    }


def _weights_under_adapters(base: nn.Module) -> dict[str, Any]:
    """The state of the model that PEFT changed in place, without what PEFT put in and under the names from before."""
    added: list[str] = []
    for path, module in base.named_modules():
        if hasattr(module, "disable_adapters") and hasattr(module, "adapter_layer_names"):
            added += [f"{path}.{name}." for name in (*module.adapter_layer_names, *module.other_param_names)]
    wrappers = (".token_adapter.", ".base_layer.", ".original_module.")
    weights: dict[str, Any] = {}
    for name, tensor in base.state_dict().items():
        if not name.startswith(tuple(added)):
            for wrapper in wrappers:
                name = name.replace(wrapper, ".")
            weights[name] = tensor
    return weights


def _checksums(name: str, tensor: torch.Tensor) -> str:
    """Two sums over the tensor's bits, one of them weighted by place: the first sees any one change, the second swaps.

    Both wrap around at 64 bits, which integer addition does alike in any order.
    """
    if tensor.is_meta or hasattr(tensor, "device_mesh") or hasattr(tensor, "ds_id"):
        raise ValueError(
            f"{name} is not here in one piece: take the model's fingerprint before it is sharded or offloaded"
        )
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.detach().contiguous().flatten().view(integers)
    plain = weighted = torch.zeros((), dtype=torch.int64, device=flat.device)
    places = torch.arange(min(_CHUNK, flat.numel()), device=flat.device)
    for number, chunk in enumerate(torch.split(flat, _CHUNK)):
        bits = chunk.long()
        plain = plain + bits.sum()
        weighted = weighted + (bits * (places[: bits.numel()] + number * _CHUNK)).sum()
    return f"{int(plain)} {int(weighted)}"
