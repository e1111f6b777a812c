"""The weak fallback: a plain process with limits, for machines where nothing better works and the code is trusted."""

from __future__ import annotations

import logging
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from composer_replication.envs.sandbox.contract import Limits
from composer_replication.envs.sandbox.supervised import SUPERVISOR, SupervisedSandbox, started

_logger = logging.getLogger(__name__)


class ProcessSandbox(SupervisedSandbox):
    """Runs commands as plain processes with your rights.

    They have no inherited environment, a temporary folder, and limits on each process: time, memory, open files, file
    size, output. They can read your files, use the network, and outlive the run. Nothing limits their number, or what
    they take together.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        _logger.warning("ProcessSandbox does not confine: code runs with your rights, your files and your network")

    @contextmanager
    def _started(self, disk_bytes: int) -> Iterator[subprocess.Popen[bytes]]:
        with (
            tempfile.TemporaryDirectory(prefix="sandbox-") as folder,
            started(SUPERVISOR, home=folder, cwd=folder) as process,
        ):
            yield process
