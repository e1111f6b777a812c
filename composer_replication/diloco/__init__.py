"""DiLoCo: several replicas train separately and synchronise every so many steps.

`Δ = θ_initial - θ_local`, averaged over the replicas, is the outer *gradient*: the outer optimiser subtracts it like
any gradient, which moves the shared parameters toward the local ones. No sign is flipped anywhere.

torchft does the work; without it the names below are None and `make_diloco_outer_loop` says what to install. The names
load on first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from composer_replication._optional import MissingExtraError, is_available, lazy_exports

if TYPE_CHECKING:
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.work import _DummyWork

    from composer_replication.diloco.outer_loop import OuterLoop, OuterRound, make_diloco_outer_loop

__all__ = ["_TORCHFT_AVAILABLE", "DiLoCo", "Manager", "OuterLoop", "OuterRound", "_DummyWork", "make_diloco_outer_loop"]

_TORCHFT_AVAILABLE: bool = is_available("torchft")
# torchft reports every message between its servers on stderr, unless this says otherwise when torchft is imported.
os.environ.setdefault("RUST_LOG", "error")
_HOMES: dict[str, str] = {}
if _TORCHFT_AVAILABLE:
    _HOMES = {
        "DiLoCo": "torchft.local_sgd",
        "Manager": "torchft.manager",
        "OuterLoop": "composer_replication.diloco.outer_loop",
        "OuterRound": "composer_replication.diloco.outer_loop",
        "_DummyWork": "torchft.work",
        "make_diloco_outer_loop": "composer_replication.diloco.outer_loop",
    }
else:
    DiLoCo = Manager = OuterLoop = OuterRound = _DummyWork = None  # type: ignore[assignment,misc]

    def make_diloco_outer_loop(*_: Any, **__: Any) -> NoReturn:  # type: ignore[misc]
        """Say what to install."""
        raise MissingExtraError("diloco", "torchft")


__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
