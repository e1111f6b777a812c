"""The trainable parameters of a model as fragments that torchft can synchronise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from composer_replication._arguments import check_count


class Fragment(nn.Module):
    """Some parameters of a model, the same objects; frozen ones and buffers are left out, so they never travel.

    `parameter_names` are their names in the model, in order; torchft sees them with `/` for the dots.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        super().__init__()
        self.parameter_names = tuple(name for name, _ in named)
        for name, parameter in named:
            self.register_parameter(name.replace(".", "/"), parameter)


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the trainable parameters of a model and their names, in order."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def trainable_fragments(model: nn.Module, count: int) -> list[Fragment]:
    """Split the trainable parameters, in the model's order, into `count` runs of about equal size.

    A tied weight is in one fragment, once.

    Raises:
        ValueError: there are fewer trainable parameters than fragments.
    """
    check_count("count", count)
    named = trainable(model)
    if len(named) < count:
        raise ValueError(
            f"{type(model).__name__} has {len(named)} trainable parameters, too few for {count} fragments: use fewer"
        )
    total = sum(parameter.numel() for _, parameter in named)
    fragments: list[Fragment] = []
    current: list[tuple[str, nn.Parameter]] = []
    done = 0
    for index, (name, parameter) in enumerate(named):
        current.append((name, parameter))
        done += parameter.numel()
        left, missing = len(named) - index - 1, count - len(fragments) - 1
        is_full = done * count >= total * (len(fragments) + 1)
        if missing and (left == missing or (is_full and left >= missing)):
            fragments.append(Fragment(current))
            current = []
    return [*fragments, Fragment(current)]
