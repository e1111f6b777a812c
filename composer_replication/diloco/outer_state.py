"""The state that replicas of a run have in common: the shared parameters and the outer momentum, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import xxhash


class OuterState:
    """The tensors of torchft's fragments and of their outer optimisers."""

    def __init__(self, fragments: Sequence[Any], outer_optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._fragments, self._outer = fragments, outer_optimizers

    def shared(self) -> dict[str, torch.Tensor]:
        """Return the shared parameters and the momentum themselves, not copies."""
        state: dict[str, torch.Tensor] = {}
        for index, (fragment, outer) in enumerate(zip(self._fragments, self._outer, strict=True)):
            state |= {f"shared/{index}/{name}": tensor for name, tensor in fragment.original_parameters.items()}
            for name, parameter in fragment._model_fragment.named_parameters():
                if (momentum := outer.state.get(parameter, {}).get("momentum_buffer")) is not None:
                    state[f"momentum/{index}/{name}"] = momentum
        return state

    def local(self) -> dict[str, torch.Tensor]:
        """Return the parameters that the inner optimiser steps."""
        return {
            f"{index}/{name}": parameter
            for index, fragment in enumerate(self._fragments)
            for name, parameter in fragment._model_fragment.named_parameters()
        }

    def digest(self) -> str:
        """Return a hash of the shared parameters and the momentum."""
        hashed = xxhash.xxh3_128()
        for name, tensor in self.shared().items():
            hashed.update(name.encode())
            hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return hashed.hexdigest()

    def equals(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Return whether these are the shared tensors that are here already."""
        mine = self.shared()
        return mine.keys() == tensors.keys() and all(
            torch.equal(mine[name].cpu(), tensors[name].cpu()) for name in mine
        )

    def load_shared(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `shared` returned elsewhere. Raises a ValueError if it is of other fragments."""
        for index, (fragment, outer) in enumerate(zip(self._fragments, self._outer, strict=True)):
            for name, shared in fragment.original_parameters.items():
                shared.copy_(entry(tensors, f"shared/{index}/{name}", shared))
            for name, parameter in fragment._model_fragment.named_parameters():
                outer.state.pop(parameter, None)
                if (momentum := tensors.get(f"momentum/{index}/{name}")) is not None:
                    outer.state[parameter]["momentum_buffer"] = momentum.detach().to(parameter.device, copy=True)

    def load_local(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `local` returned elsewhere. Raises a ValueError if it is of other fragments."""
        with torch.no_grad():
            for name, parameter in self.local().items():
                parameter.copy_(entry(tensors, name, parameter))


def entry(tensors: Mapping[str, torch.Tensor], name: str, like: torch.Tensor) -> torch.Tensor:
    """Return the tensor of that name. Raises a ValueError if it is missing or of another shape."""
    found = tensors.get(name)
    if found is None or found.shape != like.shape:
        there = "no such tensor" if found is None else f"shape {tuple(found.shape)}"
        raise ValueError(
            f"state of another model or of other fragments: {name!r} has {there} there and shape {tuple(like.shape)} "
            "here; use the same model and number of fragments"
        )
    return found
