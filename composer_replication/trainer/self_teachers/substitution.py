"""Run the policy with other tensors in place of some of its own; save those tensors and check them on loading.

A teacher that differs from the policy only in what training changes needs no second model. And a deep copy would be a
trap: trainers replace `forward` on the instance (a fused head, autocast) by a function that closes over the original's,
and the copy would run with the original's weights. For the time of a pass the modules hold the teacher's tensors
instead of their parameters; the parameters themselves, their gradients, flags and optimiser are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates, without_wrappers
from composer_replication.channels.scoring import Batch, hinted_states


def _is_in_pieces(parameter: torch.Tensor) -> bool:
    # DTensors (FSDP2, tensor parallel), FSDP's flat parameters, DeepSpeed ZeRO-3, offloading.
    marks = ("device_mesh", "_fsdp_flattened", "_is_flat_param", "ds_id")
    return parameter.is_meta or any(hasattr(parameter, mark) for mark in marks)


class Substitution:
    """The policy's passes with other tensors, and the watch over what must stay as it was for them to have effect."""

    def __init__(self, model: nn.Module) -> None:
        """Take note of what trains and of the adapters in force.

        Raises:
            ValueError: nothing trains, or an adapter is merged or disabled.
        """
        self.policy = without_wrappers(model)
        self._adapters = _adapters_in_force(self.policy)
        self._trained = _trained_names(self.policy)
        if not self._trained:
            raise ValueError(
                f"no parameter of the policy ({type(self.policy).__name__}) requires gradient: make the teacher once "
                "it is settled what trains"
            )

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that trained when the teacher was made, as they are now; a tied one under its first name.

        They are looked up anew: trainers move, cast and replace parameters after the teacher was made.

        Raises:
            ValueError: one is not here in one piece.
        """
        trained = {name: parameter for name, parameter in self.policy.named_parameters() if name in self._trained}
        for name, parameter in trained.items():
            if _is_in_pieces(parameter):
                raise ValueError(
                    f"parameter {name} of the policy is sharded or offloaded: only the live teacher can follow such a "
                    "policy; the others need it in one piece on each device (data parallel)"
                )
        return trained

    def hinted_states(
        self,
        tensors: Mapping[str, torch.Tensor],
        inputs: Batch,
        teacher_index_P2: torch.Tensor,
        token_budget: int | None,
    ) -> HiddenStates:
        """Hidden states of passes in which `tensors` stand in for the policy's parameters and buffers of their names.

        The head that comes with them is the passes' own. Weights that are tied stay tied.

        Raises:
            ValueError: adapters have been switched, disabled or merged, so that the tensors would not have their
                effect; or a parameter trains that did not, so that the teacher has not kept it.
        """
        if _adapters_in_force(self.policy) != self._adapters:
            raise ValueError(
                "the policy's active adapters are not those of the time when the teacher was made: switch back to "
                "them for the teacher's pass"
            )
        if new := sorted(_trained_names(self.policy) - self._trained):
            raise ValueError(
                f"{len(new)} parameters train that did not when the teacher was made, the first being {new[0]}: set "
                "requires_grad before the teacher is made"
            )
        substitutes = {f"policy.{name}": tensor for name, tensor in tensors.items()}
        states: HiddenStates = torch.func.functional_call(
            _HintedPass(self.policy), substitutes, (inputs, teacher_index_P2, token_budget), tie_weights=True
        )
        return states


class _HintedPass(nn.Module):
    """A module around the policy, because tensors are substituted for the time of a module's call."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, inputs: Batch, teacher_index_P2: torch.Tensor, token_budget: int | None) -> HiddenStates:
        return hinted_states(self.policy, inputs, teacher_index_P2, token_budget)


def _adapters_in_force(policy: nn.Module) -> dict[str, tuple[str, ...]]:
    """The active adapters of each of PEFT's layers.

    Raises:
        ValueError: an adapter is merged into its layer, or disabled: its own weights have no effect then.
    """
    active: dict[str, tuple[str, ...]] = {}
    for name, module in policy.named_modules():
        if not isinstance(getattr(module, "merged_adapters", None), list):
            continue
        if module.merged_adapters:
            raise ValueError(f"adapters are merged into {name}: unmerge them (`unmerge_adapter()`) for the teacher")
        if module.disable_adapters is True:
            raise ValueError(f"the adapters of {name} are disabled: leave `disable_adapter()` for the teacher")
        active[name] = tuple(module.active_adapters)
    return active


def _trained_names(policy: nn.Module) -> frozenset[str]:
    return frozenset(name for name, parameter in policy.named_parameters() if parameter.requires_grad)


def saved(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous copies on the CPU that share no memory, as safetensors needs them."""
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
