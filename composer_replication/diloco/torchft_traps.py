"""What torchft ignores or gets wrong without an error, refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchft.manager import IS_TRITON_AVAILABLE


def check_buckets(fragment: Any) -> None:
    """Refuse what torchft's buckets get wrong: all but the first may be cut, and all have the first tensor's dtype."""
    tensors = list(fragment.original_parameters.values())
    several = sum(tensor.numel() for tensor in tensors) * tensors[0].element_size() > fragment.bucket_cap_mb
    if fragment.use_bucketization and (several or len({tensor.dtype for tensor in tensors}) > 1):
        raise ValueError(
            "TORCHFT_USE_BUCKETIZATION=True with several buckets or dtypes in a fragment leaves tensors out of the "
            "average: unset it"
        )


def check_quantize(fragments: Sequence[torch.nn.Module]) -> None:
    """Refuse quantisation where torchft would average unquantised without saying so."""
    devices = {parameter.device.type for fragment in fragments for parameter in fragment.parameters()}
    if not IS_TRITON_AVAILABLE or "cpu" in devices:
        raise ValueError(
            "should_quantize=True has no effect without triton and an accelerator: leave it off, or use the codecs of "
            "composer_replication.diloco.serverless"
        )
