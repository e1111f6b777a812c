"""DiLoCo where replicas cannot reach each other: an object store is the only network.

Every round, each rank publishes its outer gradient, reduces one shard of it over all ranks, and reads the shards that
the others reduced (`exchange`). `ObjectStoreManager` puts that where torchft's outer loop wants a `Manager`.
"""

from __future__ import annotations

from composer_replication._optional import lazy_exports

__all__ = ["MockManager", "ObjectStoreAllReduce", "ObjectStoreManager", "_ImmediateWork"]

_HERE = "composer_replication.diloco.serverless"
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "ObjectStoreAllReduce": f"{_HERE}.allreduce",
        "MockManager": f"{_HERE}.manager",
        "ObjectStoreManager": f"{_HERE}.manager",
        "_ImmediateWork": f"{_HERE}.manager",
    },
)
