"""The host's side of a run: what is sent to the supervisor, and what comes back.

The scratch folder is in the host's memory, and a real folder only inside, during a run. So the host never opens a path
that a program made, and leaves nothing behind whenever it ends.
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from typing_extensions import Self

from composer_replication.envs.sandbox import supervisor
from composer_replication.envs.sandbox.contract import Limits, SandboxResult, SandboxUnavailableError
from composer_replication.envs.sandbox.supervisor import DONE, disk_use

_INTERPRETER = Path(getattr(sys, "_base_executable", sys.executable)).resolve()  # not the one of a venv
# What an interpreter runs to become the supervisor. For speed: no `site`, which would look for packages, the code in
# compiled form, and an end without tidying up.
SUPERVISOR = (
    *(str(_INTERPRETER), "-I", "-S", "-c"),
    "import marshal, sys; code, request = marshal.load(sys.stdin.buffer); exec(code); supervise(request); os._exit(0)",
)
_ENVIRONMENT = {
    "PATH": f"{_INTERPRETER.parent}:/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",  # more would reserve address space, which is limited, for every thread
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # so that equal programs have equal output
}
_CODE = compile(Path(supervisor.__file__).read_text(encoding="utf-8"), "supervisor.py", "exec", dont_inherit=True)
_SECONDS_TO_SPARE = 60.0  # for the start and the end of a run on a busy machine

_LOST = SandboxResult(-9, "", "", False, "sandbox", 0.0)


@contextmanager
def started(
    command: Sequence[str], home: str, cwd: str | None = None, pass_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with pipes, wait for its end, and bring it about if there is an error."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**_ENVIRONMENT, "HOME": home},
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,  # Ctrl-C is for the host, which then ends this
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


class SupervisedSandbox(ABC):
    """A `Sandbox` in which every run is a supervisor with its command."""

    python: tuple[str, ...] = (str(_INTERPRETER),)

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._scratch: dict[str, tuple[int, bytes]] | None = {}

    @abstractmethod
    def _started(self, disk_bytes: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Start a supervisor, with pipes, in an empty folder that is there until its end."""

    def run(self, command: Sequence[str], *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        if not command:
            raise ValueError("command must name a program, got nothing")
        limits = limits or self.limits
        scratch, text = self._files(), stdin.encode()
        used = sum(disk_use(len(content)) for _, content in scratch.values())
        if used > limits.disk_bytes:
            raise ValueError(f"the scratch folder takes {used} bytes: disk_bytes must be more than {limits.disk_bytes}")
        request = {"command": list(command), "stdin": text, "files": scratch, "limits": asdict(limits)}
        try:
            with self._started(limits.disk_bytes + len(text)) as process:
                message = marshal.dumps((_CODE, request))
                report, problem = process.communicate(message, timeout=limits.wall_seconds + _SECONDS_TO_SPARE)
        except subprocess.TimeoutExpired:
            return _LOST
        parts = list(_parts(report))
        if not parts:
            reason = (problem.decode(errors="replace").strip().splitlines() or ["it gives no reason"])[-1]
            raise SandboxUnavailableError(f"the sandbox does not start: {reason}")
        if parts[-1] != DONE:
            return _LOST
        outcome, stdout, stderr = parts[1:4]
        exit_code, seconds, killed_by = outcome.decode().split()
        if killed_by != "disk_bytes":
            files = zip(parts[4:-1:3], parts[5:-1:3], parts[6:-1:3], strict=True)
            self._scratch = {os.fsdecode(path): (int(mode, 8), content) for path, mode, content in files}
        return SandboxResult(
            exit_code=int(exit_code),
            stdout=_text(stdout, limits.output_bytes),
            stderr=_text(stderr, limits.output_bytes),
            truncated=max(len(stdout), len(stderr)) > limits.output_bytes,
            killed_by=None if killed_by == "-" else killed_by,
            seconds=float(seconds),
        )

    def write(self, path: str, text: str) -> None:
        files, place = self._files(), _checked(path)
        above = {str(folder) for folder in PurePosixPath(place).parents}
        if taken := [name for name in files if name in above or name.startswith(f"{place}/")]:
            raise ValueError(f"path {path!r} cannot be a file beside {taken[0]!r}")
        mode, _ = files.get(place, (0o644, b""))
        files[place] = (mode, text.encode())

    def read(self, path: str) -> str:
        files, place = self._files(), _checked(path)
        if place not in files:
            raise FileNotFoundError(f"the scratch folder has no file {path!r}")
        return files[place][1].decode(errors="replace")

    def files(self) -> list[str]:
        return sorted(self._files())

    def close(self) -> None:
        self._scratch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _files(self) -> dict[str, tuple[int, bytes]]:
        if self._scratch is None:
            raise ValueError("the sandbox is closed: make another one")
        return self._scratch


def _checked(path: str) -> str:
    """Return the one form of a path in the scratch folder."""
    place = PurePosixPath(path)
    if place.is_absolute() or ".." in place.parts or not place.parts or "\0" in path:
        raise ValueError(f"path must name a file in the scratch folder, got {path!r}")
    return str(place)


def _parts(report: bytes) -> Iterator[bytes]:
    """Yield the whole parts of a report, each of which has its length before it."""
    start = 0
    while start < len(report):
        start, end = start + 8, start + 8 + int.from_bytes(report[start : start + 8], "big")
        if end > len(report):
            return
        yield report[start:end]
        start = end


def _text(stream: bytes, limit: int) -> str:
    text = stream[:limit].decode(errors="replace")
    return text if len(stream) <= limit else f"{text}\n[cut at {limit} bytes]"
