"""The output head: how hidden states become logits. Shapes: N positions, H hidden size, V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from composer_replication._arguments import check_positive


@dataclass(frozen=True, eq=False)
class LogitHead:
    """`logits = softcap·tanh(scale·(hidden @ weight.T + bias) / softcap)`, the cap and the bias being optional.

    `weight` is (V, H) and `bias` (V,). A head without a weight is the identity: its hidden states are logits already,
    which lets a model whose head cannot be taken apart use the same losses.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_positive("softcap", self.softcap)
        check_positive("scale", self.scale)
        if self.weight is not None and self.weight.dim() != 2:
            raise ValueError(f"weight has shape {tuple(self.weight.shape)}, expected (vocabulary, hidden size)")
        if self.weight is None and self.bias is not None:
            raise ValueError("bias needs a weight: a head without one takes logits as they are")
        if self.weight is not None and self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ValueError(
                f"bias has shape {tuple(self.bias.shape)}, weight {tuple(self.weight.shape)}: "
                "expected one bias per row of weight"
            )

    def check_hidden(self, name: str, hidden: torch.Tensor) -> None:
        """Raise unless `hidden` is (N, H) for this head, with at least one row."""
        width = None if self.weight is None else self.weight.shape[1]
        if hidden.dim() != 2 or (width is not None and hidden.shape[1] != width):
            raise ValueError(f"{name} has shape {tuple(hidden.shape)}, expected (positions, {width or 'V'})")
        if hidden.shape[0] == 0:
            raise ValueError(f"{name} has no positions: its shape is {tuple(hidden.shape)}")

    def is_same(self, other: LogitHead) -> bool:
        """Whether both turn the same hidden states into the same logits, through the very same tensors."""
        return (
            self.weight is other.weight
            and self.bias is other.bias
            and (self.scale, self.softcap) == (other.scale, other.softcap)
        )

    def vocabulary(self, hidden: torch.Tensor) -> int:
        """V, the number of logits that `hidden` gives."""
        return hidden.shape[-1] if self.weight is None else self.weight.shape[0]

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The head's tensors under the names that an error should call them by."""
        parts = {f"{name}.weight": self.weight, f"{name}.bias": self.bias}
        return {part: tensor for part, tensor in parts.items() if tensor is not None}

    def finish(self, projected: torch.Tensor) -> torch.Tensor:
        """Scale and cap what the linear map gave; differentiable."""
        if self.scale != 1.0:
            projected = projected * self.scale
        if self.softcap is not None:
            projected = torch.tanh(projected / self.softcap) * self.softcap
        return projected

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """All the logits of (..., H) hidden states, materialised and differentiable."""
        if self.weight is None:
            return self.finish(hidden)
        return self.finish(torch.nn.functional.linear(hidden, self.weight, self.bias))
