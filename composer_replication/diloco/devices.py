"""The CUDA devices of replicas on one machine: replica R has device R, and several share one if there are fewer."""

from __future__ import annotations

from collections.abc import Mapping

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def visible_devices(count: int, environment: Mapping[str, str]) -> list[str]:
    """Return the names of the `count` devices that CUDA sees; names after one that does not exist have no effect."""
    given = environment.get(VISIBLE_DEVICES)
    return (given.split(",") if given else [str(number) for number in range(count)])[:count]


def devices_of(replica: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the replica's own device of those that `environment` lists."""
    visible = [name for name in environment.get(VISIBLE_DEVICES, "").split(",") if name]
    return {VISIBLE_DEVICES: visible[replica % len(visible)]} if visible else {}
