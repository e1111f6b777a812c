"""The settings of a gate, kept with the rows it let through: pairs must be extracted by the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict


class GateSettings(TypedDict):
    """`agreement` is "exact", "action", or "custom" for a comparer of the caller's own."""

    agreement: str
    agreement_threshold: int
    min_margin: int


class PairRule(NamedTuple):
    """The rule that pairs are extracted by; `warning` is set if the gate had another one."""

    agreement: Any
    threshold: int
    min_margin: int
    warning: str | None


def gate_settings(agreement: str | Callable[..., Any], agreement_threshold: int, min_margin: int) -> GateSettings:
    """Return the settings as rows keep them."""
    name = agreement if isinstance(agreement, str) else "custom"
    return GateSettings(agreement=name, agreement_threshold=agreement_threshold, min_margin=min_margin)


def add_gate(gates: list[GateSettings], row: Mapping[str, Any]) -> None:
    """Add the gate of a row to those seen so far."""
    gate = row.get("gated_by")
    if gate is not None and gate not in gates:
        gates.append(gate)


def pair_rule(
    gates: Sequence[GateSettings],
    agreement: Any,
    threshold: int | None,
    min_margin: int | None,
    *,
    default_agreement: str,
) -> PairRule:
    """Fill in what is None: the gates' value if all agree, or else the default (2 teachers, margin 0)."""
    if agreement is None:
        agreement = _common([gate["agreement"] for gate in gates], default_agreement)
        if agreement == "custom":
            agreement = default_agreement
    if threshold is None:
        threshold = _common([gate["agreement_threshold"] for gate in gates], 2)
    if min_margin is None:
        min_margin = _common([gate["min_margin"] for gate in gates], 0)
    used = gate_settings(agreement, threshold, min_margin)
    others = "; ".join(_described(gate) for gate in gates if gate != used)
    warning = (
        f"the rows were gated by {others}, and pairs are looked for by {_described(used)}: answers that the gate found "
        "needless are missing; use the gate's own, or replay without a gate (what is stored is not paid again)"
    )
    return PairRule(agreement, threshold, min_margin, warning if others else None)


def _common(values: list[Any], default: Any) -> Any:
    return values[0] if values and values.count(values[0]) == len(values) else default


def _described(gate: GateSettings) -> str:
    return f"agreement {gate['agreement']}, threshold {gate['agreement_threshold']}, margin {gate['min_margin']}"
