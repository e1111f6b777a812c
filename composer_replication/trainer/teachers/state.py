"""Teachers' states on their way to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch


def saved(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU, each with memory of its own: what safetensors takes, and what later steps leave alone."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def check_state(kind: str, state: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Require the names and shapes of `expected`; raise a `ValueError` that names the first of what is wrong."""
    problems = [
        _listed("lacks", expected.keys() - state.keys()),
        _listed("has, of no use to this policy,", state.keys() - expected.keys()),
        _listed(
            "has in another shape",
            (
                f"{name} {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
                for name, tensor in expected.items()
                if name in state and state[name].shape != tensor.shape
            ),
        ),
    ]
    if found := [problem for problem in problems if problem]:
        raise ValueError(
            f"the saved state of the {kind} teacher {'; it '.join(found)}: it was saved for another policy or kind of "
            "teacher"
        )


def _listed(what: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return f"{what} {', '.join(ordered[:3])}{more}" if ordered else ""
