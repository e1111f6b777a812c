"""Run a causal LM up to its last hidden states, and find the head that turns them into logits.

Losses that touch a tenth of the positions should not pay for logits at all of them. So the model is called through its
own `forward` (wrappers, hooks and adapters stay active) with logits for one position only, the hidden states are taken
from the backbone's output, and the losses project the positions they need.

Shapes: B batch, T positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from composer_replication._arguments import check_same_shape, check_token_ids
from composer_replication.distillation.fused.head import LogitHead

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """The result of a forward pass for the losses: (B, T, H) hidden states and the head that reads them."""

    hidden: torch.Tensor
    head: LogitHead

    def predicting(self, index_P2: torch.Tensor) -> torch.Tensor:
        """Return the (P, H) states that predict the tokens at (P, 2) pairs of row and column: one column earlier."""
        return self.hidden[index_P2[:, 0], index_P2[:, 1] - 1]


def run_causal_lm(
    model: nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
) -> HiddenStates:
    """Make one forward pass; gradients follow the caller's grad mode.

    `attention_mask` has the ids' shape, or is (B, 1, T, T) in the form of the model's attention; the model must then
    pass such a mask through (see `shared_prefix`). Without `position_ids` the model counts columns.

    A model whose head is not a plain linear layer after a backbone (an adapter, quantisation or sharding of the head,
    logits post-processed in a way its config does not name, a model compiled as a whole, or simply an unknown module)
    is run with full logits instead; a warning says so once, because memory then grows with the vocabulary.

    Raises:
        ValueError: ids that are not (B, T) integers, or a mask or positions of another shape.
    """
    check_token_ids("input_ids", input_ids)
    if position_ids is not None:
        check_same_shape("position_ids", position_ids, "input_ids", input_ids)
    if attention_mask is not None and attention_mask.dim() != 4:
        check_same_shape("attention_mask", attention_mask, "input_ids", input_ids)
    inner = transformers_model(model)
    parameters = inspect.signature(inner.forward).parameters
    arguments: dict[str, Any] = {"input_ids": input_ids}
    if attention_mask is not None:
        arguments["attention_mask"] = attention_mask
    if position_ids is not None:
        arguments["position_ids"] = position_ids
    if "use_cache" in parameters:
        arguments["use_cache"] = False
    parts = _backbone_and_head(inner)
    # Prompt tuning puts virtual tokens before the real ones: only the last columns are the ids' own.
    width = input_ids.shape[1]
    if parts is not None:
        backbone, linear = parts
        with _watching(backbone) as states, _watching(linear) as heads:
            last_logits = model(logits_to_keep=1, **arguments).logits
        finish = _finish(inner, linear, states, heads, last_logits)
        if finish is not None and states:
            head = LogitHead(linear.weight, linear.bias, finish.scale, finish.softcap)
            return HiddenStates(_hidden(states[-1].output)[:, -width:], head)
    return HiddenStates(model(**arguments).logits[:, -width:], LogitHead(None))


class KeptStates:
    """The outputs of a model's backbone while `keeping_hidden_states` was active."""

    def __init__(self, model: nn.Module) -> None:
        self._inner = transformers_model(model)
        self._calls: list[_Call] = []

    def hidden_states(self) -> HiddenStates | None:
        """Return the hidden states of the one pass that was made, with gradients; None if the model's head cannot be
        used apart from it, so that the losses need a pass of `run_causal_lm`.

        Raises:
            ValueError: no pass was made, or several.
        """
        parts = _backbone_and_head(self._inner)
        finish = None if parts is None else _finishes.get(parts[1])
        if parts is None or finish is None:
            return None
        if len(self._calls) != 1:
            raise ValueError(f"the backbone was run {len(self._calls)} times, expected once")
        hidden = _hidden(self._calls[0].output)
        linear = parts[1]
        if not torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(linear.weight.dtype)  # a head in float32 reads states in float32
        return HiddenStates(hidden, LogitHead(linear.weight, linear.bias, finish.scale, finish.softcap))


@contextmanager
def keeping_hidden_states(model: nn.Module) -> Iterator[KeptStates]:
    """Keep the hidden states of a pass that other code makes, so that a second loss needs no second pass.

    `recognise_head` must have seen the model before.
    """
    kept = KeptStates(model)
    parts = _backbone_and_head(kept._inner)
    if parts is None:
        yield kept
        return
    with _watching(parts[0]) as calls:
        kept._calls = calls
        yield kept


def recognise_head(model: nn.Module) -> LogitHead | None:
    """Find the model's head by a pass over two tokens; None if it cannot be used apart from the model."""
    inner = transformers_model(model)
    device = next(inner.parameters()).device
    with torch.no_grad(), evaluating(model):
        head = run_causal_lm(model, torch.tensor([[0, 1]], device=device)).head
    parts = _backbone_and_head(inner)
    if head.weight is None or parts is None:
        return None
    # If several readings fit, the first was taken: it is the one that the config names.
    _finishes.setdefault(parts[1], _Finish(head.scale, head.softcap))
    return head


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch off dropout and the like for a teacher's pass, then restore each module's own mode."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


class _Call(NamedTuple):
    input: Any
    output: Any


@contextmanager
def _watching(module: nn.Module) -> Iterator[list[_Call]]:
    """Collect a module's inputs and outputs while the block runs."""
    calls: list[_Call] = []

    def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        calls.append(_Call(inputs[0] if inputs else None, output))

    hook = module.register_forward_hook(note)
    try:
        yield calls
    finally:
        hook.remove()


def _hidden(output: Any) -> torch.Tensor:
    hidden: torch.Tensor = output[0] if isinstance(output, tuple) else output.last_hidden_state
    return hidden


@dataclass(frozen=True)
class _Finish:
    """The scale and cap that a model applies to the output of its linear head."""

    scale: float
    softcap: float | None


# By head module, so that a replaced head (a resized vocabulary) is examined again. None: this head cannot be used apart
# from its model.
_finishes: WeakKeyDictionary[nn.Module, _Finish | None] = WeakKeyDictionary()
_warned: WeakSet[nn.Module] = WeakSet()


def _backbone_and_head(inner: nn.Module) -> tuple[nn.Module, nn.Linear] | None:
    get_head = getattr(inner, "get_output_embeddings", None)
    get_decoder = getattr(inner, "get_decoder", None)
    keeps_logits = "logits_to_keep" in inspect.signature(inner.forward).parameters
    if get_head is None or get_decoder is None or not keeps_logits:
        _warn_full_logits(inner, "it does not expose a backbone, a head and `logits_to_keep`")
        return None
    linear, backbone = get_head(), get_decoder()
    # Subclasses that compute something else (LoRA, 4-bit and 8-bit layers) bring their own forward.
    if not isinstance(linear, nn.Linear) or type(linear).forward is not nn.Linear.forward:
        _warn_full_logits(inner, f"its head is a {type(linear).__module__}.{type(linear).__name__}")
        return None
    weight = linear.weight
    if hasattr(weight, "device_mesh") or weight.is_meta or weight.shape != (linear.out_features, linear.in_features):
        _warn_full_logits(inner, "its head's weight is not here in one piece: it is sharded or offloaded")
        return None
    if backbone is inner:
        _warn_full_logits(inner, "its backbone cannot be told from its head")
        return None
    return None if _finishes.get(linear, _Finish(1.0, None)) is None else (backbone, linear)


def without_wrappers(model: nn.Module) -> nn.Module:
    """Return the model inside data-parallel wrappers (`.module`)."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def transformers_model(model: nn.Module) -> nn.Module:
    """Return the transformers model inside data-parallel wrappers and PEFT (`.get_base_model()`)."""
    model = without_wrappers(model)
    get_base_model = getattr(model, "get_base_model", None)
    return get_base_model() if get_base_model is not None else model


def _finish(
    inner: nn.Module, linear: nn.Linear, states: list[_Call], heads: list[_Call], last_logits_B1V: torch.Tensor
) -> _Finish | None:
    """Find the scale and cap that turn the head's output into the model's logits, among the values its config names.

    Models disagree on what a config value does (one `logits_scaling` divides, another multiplies), so the candidates
    are tried against what the model itself gave at the last position.
    """
    if linear in _finishes:
        return _finishes[linear]
    matching: list[_Finish] = []
    if states and heads:
        plain = heads[-1].output.detach()
        if not bool(torch.isfinite(plain).all()):
            # This says nothing about the head. The losses will find the NaN and name it.
            return _Finish(1.0, None)
        if _same(_hidden(states[-1].output)[:, -1:], heads[-1].input):
            matching = [
                finish
                for finish in _candidates(inner)
                if _same(LogitHead(None, scale=finish.scale, softcap=finish.softcap).finish(plain), last_logits_B1V)
            ]
    if not matching:
        _finishes[linear] = None
        _warn_full_logits(inner, "its logits are not a scaled, capped linear map of its hidden states")
        return None
    if len(matching) == 1:
        _finishes[linear] = matching[0]
    # Several match if logits are near 0: take the first, which the config names, and examine it again next time.
    return matching[0]


def _same(one: torch.Tensor, other: Any) -> bool:
    """Whether two outputs are equal up to the rounding of the coarser one: a wrapper may cast them."""
    if not isinstance(other, torch.Tensor) or one.shape != other.shape:
        return False
    coarse = max(torch.finfo(one.dtype).eps, torch.finfo(other.dtype).eps)
    return torch.allclose(one.detach().float(), other.detach().float(), rtol=4 * coarse, atol=4 * coarse)


def _candidates(inner: nn.Module) -> list[_Finish]:
    """List every way to use the values that the config names, those that use most of them first."""
    config: Any = getattr(inner, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()

    def named(name: str) -> float | None:
        value = getattr(config, name, None)
        return float(value) if isinstance(value, (int, float)) and value > 0 else None

    scales: dict[float, None] = {}
    for name in ("logit_scale", "logits_scaling", "lm_head_multiplier"):
        if (value := named(name)) is not None:
            scales.update({value: None, 1.0 / value: None})
    scales[1.0] = None
    softcaps = {named("final_logit_softcapping"): None, None: None}
    return [_Finish(scale, softcap) for softcap in softcaps for scale in scales]


def _warn_full_logits(inner: nn.Module, reason: str) -> None:
    if inner in _warned:
        return
    _warned.add(inner)
    logger.warning(
        "%s: %s. Losses will use logits at every position, and memory will grow with the vocabulary.",
        type(inner).__name__,
        reason,
    )
