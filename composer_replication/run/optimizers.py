"""The optimisers: AdamW for everything, or Muon for the matrices of the blocks with AdamW for the rest.

Muon orthogonalises the update of a matrix that maps one hidden space to another. Embeddings and the head (one weight
where they are tied) map tokens, and norms and biases are not matrices: those are left to AdamW.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from composer_replication.run.sections import OptimizerSection

logger = logging.getLogger(__name__)


def make_optimizer(model: nn.Module, settings: OptimizerSection) -> Optimizer:
    """An optimiser of the model's trainable parameters; norms and biases are not decayed.

    Muon's updates are scaled to the size that AdamW's have, so the two share a learning rate and a weight decay unless
    `settings.muon` has others.

    Raises:
        ValueError: a model with nothing to train, or with no matrix for Muon.
    """
    lr, weight_decay, muon = settings.lr, settings.weight_decay, settings.muon
    matrices, decayed, undecayed = _kinds_of_parameters(model)
    adamw = partial(AdamW, lr=lr, betas=settings.betas, eps=settings.eps)
    if settings.name == "adamw":
        return adamw(_groups([*matrices, *decayed], undecayed, weight_decay))
    stacks = [name for name, one in model.named_parameters() if one.requires_grad and one.dim() > 2]
    if stacks:
        logger.warning(
            "%d parameters are stacks of matrices (%s the first), which Muon does not take here: AdamW trains them",
            len(stacks),
            stacks[0],
        )
    if not matrices:
        raise ValueError(
            f"{type(model).__name__} has no matrix to train between its embeddings and its head: use adamw"
        )
    return MuonAndAdamW(
        Muon(
            [{"params": matrices}],
            lr=lr if muon.lr is None else muon.lr,
            weight_decay=weight_decay if muon.weight_decay is None else muon.weight_decay,
            momentum=muon.momentum,
            nesterov=muon.nesterov,
            ns_steps=muon.ns_steps,
            adjust_lr_fn="match_rms_adamw",
        ),
        adamw(_groups(decayed, undecayed, weight_decay)),
    )


class MuonAndAdamW(Optimizer):
    """Two optimisers as one: the same groups and the same state, so that schedulers and checkpoints see a whole."""

    def __init__(self, muon: Muon, adamw: AdamW) -> None:
        self._muon, self._adamw = muon, adamw
        self._is_whole = False
        # The very dictionaries of the two: a scheduler that sets a group's learning rate sets theirs.
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._is_whole = True
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.step()  # type: ignore[no-untyped-call]
        self._adamw.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state. It comes with new groups, which the two have to share again."""
        super().load_state_dict(state_dict)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: nothing says whose the parameters would be.

        Raises:
            RuntimeError: always, once the optimiser is made.
        """
        if self._is_whole:
            raise RuntimeError("parameters cannot be added later: make_optimizer sorts them when it is called")
        super().add_param_group(param_group)

    def _share(self) -> None:
        count = len(self._muon.param_groups)
        self._muon.param_groups, self._adamw.param_groups = self.param_groups[:count], self.param_groups[count:]
        self._muon.state = self._adamw.state = self.state


class OptimizerFactory:
    """`make_optimizer` in the form in which `transformers.Trainer` takes one: `optimizer_cls_and_kwargs`.

    The trainer calls it with the model as it will be trained, with its wrappers.
    """

    def __call__(self, model: nn.Module, **settings: Any) -> Optimizer:
        """Call `make_optimizer` with the settings of a configuration's section `optimizer`."""
        return make_optimizer(model, OptimizerSection(**settings))


def _groups(decayed: list[nn.Parameter], undecayed: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _kinds_of_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters: matrices between hidden spaces, others that are decayed, and vectors."""
    of_tokens = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    inner = model
    while isinstance(wrapped := getattr(inner, "module", None), nn.Module):  # data-parallel wrappers
        inner = wrapped
    get_head = getattr(inner, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    if head is not None:
        of_tokens.update(map(id, head.parameters()))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError(f"{type(model).__name__} has no parameter that requires a gradient: there is nothing to train")
    matrices = [one for one in trainable if one.ndim == 2 and id(one) not in of_tokens]
    chosen = set(map(id, matrices))
    others = [one for one in trainable if id(one) not in chosen]
    return matrices, [one for one in others if one.ndim >= 2], [one for one in others if one.ndim < 2]
