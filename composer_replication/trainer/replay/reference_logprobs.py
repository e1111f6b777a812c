"""What the reference policy thinks of the pairs: computed once, then read from disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from composer_replication._whole_file import whole_file
from composer_replication.causal_lm import evaluating
from composer_replication.channels.scoring import preference_logprobs
from composer_replication.trainer.replay.pairs import check_rows, preference_batch, rows_digest
from composer_replication.trainer.replay.preference_rows import PreferenceRow
from composer_replication.trainer.replay.reference_policy import acts_as_reference, model_fingerprint, reference_policy

__all__ = ["model_fingerprint", "reference_logprobs", "reference_policy"]

logger = logging.getLogger(__name__)

_FORMAT = "composer_replication/reference_logprobs/1"


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
    """The (N, 2) summed log-probabilities of chosen and rejected responses, in float32 on the CPU.

    With `cache_dir` they are kept in a file there, named by a hash of the model and the pairs; a file that is damaged
    or another's is computed anew, with a warning. Processes may share the folder.

    Args:
        model: the reference policy; a PEFT model inside `reference_policy(model)`.
        rows: the pairs.
        pad_token_id: what rows are filled up with. It is masked.
        batch_size: pairs per forward pass.
        cache_dir: where the values are kept; None: nowhere.
        device: where the model is.
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
        return _computed(model, rows, pad_token_id, batch_size, device)
    origin = {"format": _FORMAT, "model": model_fingerprint(model), "pairs": rows_digest(rows), "precision": precision}
    file = cache_dir / f"{hashlib.sha256(''.join(origin.values()).encode()).hexdigest()[:32]}.safetensors"
    kept = _read(file, origin, len(rows))
    if kept is not None:
        logger.info("Reference log-probabilities of %d pairs: read from %s", len(rows), file)
        return kept
    values_N2 = _computed(model, rows, pad_token_id, batch_size, device)
    _write(file, origin, values_N2)
    return values_N2


def _computed(
    model: nn.Module, rows: Sequence[PreferenceRow], pad_token_id: int, batch_size: int, device: torch.device | str
) -> torch.Tensor:
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
                logger.info("Reference log-probabilities: %d of %d pairs", start + len(places), len(order))
    return values_N2


def _read(file: Path, origin: dict[str, str], count: int) -> torch.Tensor | None:
    """The values in the file; None if there is none, or none that can be trusted."""
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            values_N2: torch.Tensor = opened.get_tensor("logprobs")
    except (SafetensorError, OSError) as error:
        logger.warning("%s cannot be read (%s): the reference log-probabilities are computed anew", file, error)
        return None
    expected = {**origin, "checksum": _checksum(values_N2)}
    wrong = sorted(name for name, value in expected.items() if metadata.get(name) != value)
    if wrong or values_N2.shape != (count, 2) or values_N2.dtype != torch.float32:
        what = f"its {', '.join(wrong)} differs" if wrong else "its shape or dtype differs"
        logger.warning("%s is not what was written there (%s): the values are computed anew", file, what)
        return None
    return values_N2


def _write(file: Path, origin: dict[str, str], values_N2: torch.Tensor) -> None:
    from safetensors.torch import save_file

    with whole_file(file, "reference log-probabilities") as temporary:
        save_file({"logprobs": values_N2}, temporary, metadata={**origin, "checksum": _checksum(values_N2)})


def _checksum(values: torch.Tensor) -> str:
    return hashlib.sha256(values.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
