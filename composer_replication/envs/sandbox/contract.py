"""The interface of a sandbox, the limits of a run, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from composer_replication._arguments import check_count, check_positive

MEBIBYTE = 2**20


class SandboxUnavailableError(RuntimeError):
    """The sandbox does not work on this machine."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run. A run that goes beyond one is ended, or gets an error from the system call.

    Attributes:
        wall_seconds: time on the clock.
        cpu_seconds: CPU time of each process, in whole seconds.
        memory_bytes: address space of each process, and resident memory of all of them together.
        processes: processes and threads at the same time.
        file_bytes: size of each file.
        open_files: open files of each process.
        disk_bytes: scratch folder, temporary files and output together; every file counts as 16 KiB or more.
        output_bytes: what is kept of stdout, and of stderr.
    """

    wall_seconds: float = 10.0
    cpu_seconds: int = 10
    memory_bytes: int = 512 * MEBIBYTE
    processes: int = 32
    file_bytes: int = 16 * MEBIBYTE
    open_files: int = 64
    disk_bytes: int = 64 * MEBIBYTE
    output_bytes: int = MEBIBYTE

    def __post_init__(self) -> None:
        check_positive("wall_seconds", self.wall_seconds)
        for field in fields(self)[1:]:
            check_count(field.name, getattr(self, field.name))


@dataclass(frozen=True)
class SandboxResult:
    """The result of one run.

    Attributes:
        exit_code: of the command; negative: the signal that ended it; 127: it could not be started.
        stdout: as UTF-8, with a last line that says so if it was cut.
        stderr: the same.
        truncated: whether one of them was cut.
        killed_by: the limit that ended the run, by its name in `Limits`; "sandbox" if the sandbox itself broke down
            during the run, and the scratch folder is as it was before; None if the command ended by itself.
        seconds: time on the clock from the start of the command to its end.
    """

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool
    killed_by: str | None
    seconds: float

    @property
    def timed_out(self) -> bool:
        """Whether the run took too long."""
        return self.killed_by in ("wall_seconds", "cpu_seconds")


class Sandbox(Protocol):
    """One scratch folder, which is the working directory of every run in it.

    Between runs the folder has regular files alone: links, pipes and empty folders do not stay. No process stays
    either: a run ends with its command.

    Attributes:
        python: the beginning of a command that runs Python inside.
    """

    python: tuple[str, ...]

    def run(self, command: Sequence[str], *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        """Run a command to its end. `limits` are those of the sandbox if None."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write a file of the scratch folder, with the folders above it."""
        ...

    def read(self, path: str) -> str:
        """Return the text of a file of the scratch folder.

        Raises:
            FileNotFoundError: if it has no such regular file.
        """
        ...

    def files(self) -> list[str]:
        """Return the paths of the regular files in the scratch folder, sorted."""
        ...

    def close(self) -> None:
        """Drop the scratch folder. Every later call raises an error."""
        ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *exception: object) -> None: ...
