"""The reference policy's log-probabilities of the pairs: computed once, then read from disk.

The reference is the policy that training starts from: a model with its adapters off. `model_fingerprint` tells one such
policy from another.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from composer_replication._files import whole_file
from composer_replication.causal_lm import evaluating, without_wrappers
from composer_replication.channels import preference_logprobs
from composer_replication.trainer.preference_rows import PreferenceRow, check_rows, preference_batch, rows_digest

logger = logging.getLogger(__name__)

_FORMAT = "composer_replication/reference_logprobs/1"
# Values of a config that change nothing in a forward pass, and that trainers set as they like.
_IDLE_SETTINGS = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
_CHUNK = 1 << 22


def reference_logprobs(
    model: nn.Module,
    rows: Sequence[PreferenceRow],
    *,
    pad_token_id: int,
    batch_size: int,
    cache_dir: Path | None,
    device: torch.device | str,
    precision: str = "no",
) -> torch.Tensor:
    """Return the (N, 2) summed log-probabilities of chosen and rejected responses, in float32 on the CPU.

    With `cache_dir` they are kept in a file there, named by a hash of the model and the pairs. If it is damaged or of
    another model, they are computed again, with a warning. Processes may share the folder.

    Args:
        model: the reference policy; a PEFT model inside `reference_policy(model)`.
        rows: the pairs.
        pad_token_id: id of the padding, which is masked.
        batch_size: pairs per forward pass.
        cache_dir: folder of the cache; None: no cache.
        device: device of the model.
        precision: of the autocast that the caller has put around this, as accelerate calls it; values of one are not
            taken for those of another.

    Raises:
        ValueError: no rows or a row with an empty part, a batch size below 1, adapters that are on, or weights that are
            not here in one piece.
        OSError: `cache_dir` cannot be written.
    """
    check_rows(rows)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not acts_as_reference(model):
        raise ValueError("the model's adapters are on: call reference_logprobs inside `with reference_policy(model)`")
    if cache_dir is None:
        return pair_logprobs(model, rows, pad_token_id, batch_size, device)
    origin = {"format": _FORMAT, "model": model_fingerprint(model), "pairs": rows_digest(rows), "precision": precision}
    file = cache_dir / f"{hashlib.sha256(''.join(origin.values()).encode()).hexdigest()[:32]}.safetensors"
    kept = _read(file, origin, len(rows))
    if kept is not None:
        logger.info("Reference log-probabilities of %d pairs: read from %s", len(rows), file)
        return kept
    values_N2 = pair_logprobs(model, rows, pad_token_id, batch_size, device)
    _write(file, origin, values_N2)
    return values_N2


def pair_logprobs(
    model: nn.Module, rows: Sequence[PreferenceRow], pad_token_id: int, batch_size: int, device: torch.device | str
) -> torch.Tensor:
    """Return the (N, 2) summed log-probabilities of chosen and rejected responses, without dropout and gradient."""
    values_N2 = torch.empty(len(rows), 2)
    # Rows of like length share a batch, the longest first: if memory does not suffice, that shows at once.
    order = sorted(range(len(rows)), key=lambda place: sum(map(len, rows[place])), reverse=True)
    reported = 0
    with torch.no_grad(), evaluating(model):
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            batch = preference_batch([rows[place] for place in places], pad_token_id=pad_token_id)
            sums, _ = preference_logprobs(model, {name: tensor.to(device) for name, tensor in batch.items()})
            values_N2[places] = torch.stack(sums.float().chunk(2), dim=1).cpu()
            tenth = 10 * (start + len(places)) // len(order)
            if tenth > reported:
                reported = tenth
                logger.info("Log-probabilities: %d of %d pairs", start + len(places), len(order))
    return values_N2


def _read(file: Path, origin: dict[str, str], count: int) -> torch.Tensor | None:
    """Return the values in the file; None if there is none, or if it cannot be trusted."""
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            values_N2: torch.Tensor = opened.get_tensor("logprobs")
    except (SafetensorError, OSError) as error:
        logger.warning("%s cannot be read (%s): the reference log-probabilities are computed again", file, error)
        return None
    expected = {**origin, "checksum": _checksum(values_N2)}
    wrong = sorted(name for name, value in expected.items() if metadata.get(name) != value)
    if wrong or values_N2.shape != (count, 2) or values_N2.dtype != torch.float32:
        what = f"its {', '.join(wrong)} differs" if wrong else "its shape or dtype differs"
        logger.warning("%s is not what was written there (%s): the values are computed again", file, what)
        return None
    return values_N2


def _write(file: Path, origin: dict[str, str], values_N2: torch.Tensor) -> None:
    from safetensors.torch import save_file

    with whole_file(file, "reference log-probabilities") as temporary:
        save_file({"logprobs": values_N2}, temporary, metadata={**origin, "checksum": _checksum(values_N2)})


def _checksum(values: torch.Tensor) -> str:
    return hashlib.sha256(values.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


@contextmanager
def reference_policy(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the module that acts as the reference while the block runs.

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
    """Return whether the model's adapters are off."""
    policy: Any = without_wrappers(model)
    return not _has_adapters(policy) or bool(getattr(policy, "_adapters_disabled", False))


def model_fingerprint(model: nn.Module) -> str:
    """Return a hash of the reference policy's weights and config; of a PEFT model, that of its base model.

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
    """Return the state of a model that PEFT changed in place, without what PEFT added and under the original names."""
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
    """Return two sums over the tensor's bits, one weighted by place: the first detects a change, the second a swap.

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
