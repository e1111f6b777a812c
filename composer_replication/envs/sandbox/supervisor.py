"""Runs beside a command inside the sandbox: unpacks the scratch folder, starts the command, watches it, reports.

It is process 1 of the sandbox, which no signal from inside ends, and at whose end the kernel ends all others. It has
the only pipe to the host: the streams of the command are files, which are read when all processes are gone.

The host sends the compiled code of this module to an interpreter without `site`, so it imports nothing of the package,
and of the standard library only what starts in no time. `_signal` and `_ctypes` are the parts of `signal` and `ctypes`
in C; the rest of these would take longer than all of this module.
"""

from __future__ import annotations

import _ctypes
import _signal  # type: ignore[import-not-found]
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False  # a type checker knows the name; importing it would take as long as the rest
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

_INTERVAL = 0.01  # seconds between two looks at what the command uses
_PAGE = 4096
_SMALLEST_FILE = 4 * _PAGE  # as it counts: a great many empty ones would make every later run slow
_PROCESSES_TO_SPARE = 8  # beyond the limit, so that the kernel refuses only what comes before the next look
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
PROGRAM_USER = 1000  # and its group
DONE = b"done"  # the last part of a whole report


def supervise(request: dict[str, Any]) -> None:
    """Do one run in the current folder. Reports a first part when all is ready, the others when all is over."""
    limits: dict[str, Any] = request["limits"]
    confined = os.getpid() == 1
    # The kernel keeps signals from process 1 unless it handles them, and Python handles this one.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if confined and os.getuid() == 0:  # The host is root, and no program may be. As its own user, this can end it.
        os.setgroups([])
        os.setegid(PROGRAM_USER)
        os.seteuid(PROGRAM_USER)
    _process_control(_PR_SET_DUMPABLE, 0)  # nobody inside may look into this process, or write to its pipe
    _process_control(_PR_SET_PDEATHSIG, _signal.SIGKILL)  # bubblewrap sets it, and a change of user clears it
    streams = [_unnamed_file() for _ in range(3)]
    os.mkdir("scratch")
    os.chdir("scratch")
    os.environ["PWD"] = os.getcwd()
    folder = os.open(".", os.O_RDONLY)
    for path, (mode, content) in request["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, mode)
    with open(streams[0], "wb", closefd=False) as stdin:
        stdin.write(request["stdin"])
    os.lseek(streams[0], 0, os.SEEK_SET)
    _report(b"ready")
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _execute(request["command"], limits, streams, confined)
    everyone = -1 if confined else -child  # all of the sandbox, or the command's process group
    exit_code, killed_by = _watch(child, everyone, limits, streams, confined)
    seconds = time.monotonic() - start
    _kill(everyone)  # those that the command left
    try:
        while True:
            os.wait()
    except ChildProcessError:  # all are gone
        pass
    stdout, stderr = (os.pread(stream, limits["output_bytes"] + 1, 0) for stream in streams[1:])
    os.fchmod(folder, 0o700)
    files: list[bytes] = []
    try:
        files += _files(disk_use(limits["disk_bytes"]))
    except OverflowError:
        killed_by = "disk_bytes"
    _report(f"{exit_code} {seconds} {killed_by or '-'}".encode(), stdout, stderr, *files, DONE)


def _process_control(option: int, value: int) -> None:
    library = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]
    _ctypes.call_function(_ctypes.dlsym(library, "prctl"), (option, value, 0, 0, 0))


def _unnamed_file() -> int:
    stream = os.open("stream", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    os.unlink("stream")
    return stream


def _execute(command: list[str], limits: dict[str, Any], streams: list[int], confined: bool) -> NoReturn:
    try:
        os.setsid()
        if confined:
            os.setresgid(*[PROGRAM_USER] * 3)
            os.setresuid(*[PROGRAM_USER] * 3)
        _process_control(_PR_SET_PDEATHSIG, _signal.SIGKILL)
        for ignored_by_python in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(ignored_by_python, _signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(len(streams), resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # bubblewrap leaves one open
        wanted = {"CPU": "cpu_seconds", "AS": "memory_bytes", "FSIZE": "file_bytes", "NOFILE": "open_files"}
        values = {name: limits[limit] for name, limit in wanted.items()} | {"CORE": 0, "MSGQUEUE": 0}
        # Before Linux 5.14 this one counted all processes of the user, on the whole machine.
        if confined and tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (5, 14):
            values["NPROC"] = limits["processes"] + _PROCESSES_TO_SPARE
        for name, value in values.items():
            which = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(which)[1]
            most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
            # One second more of CPU time for the signal that says so, before the one that ends it.
            resource.setrlimit(which, (min(value, most), min(value + (name == "CPU"), most)))
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _watch(
    child: int, everyone: int, limits: dict[str, Any], streams: list[int], confined: bool
) -> tuple[int, str | None]:
    """Wait for the command's end, and bring it about at a limit. Returns its exit code, and the limit."""
    deadline = time.monotonic() + limits["wall_seconds"]
    ended = os.pidfd_open(child)
    killed_by = None
    while True:
        select.select([ended], [], [], _INTERVAL)
        for _ in range(limits["processes"]):  # so that a flood of orphans cannot hold up the look at the limits
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == child:
                exit_code = os.waitstatus_to_exitcode(status)
                exhausted = usage.ru_utime + usage.ru_stime >= limits["cpu_seconds"]
                if exit_code == -_signal.SIGXCPU or (exit_code == -_signal.SIGKILL and exhausted):
                    killed_by = killed_by or "cpu_seconds"
                # A fast writer may fill its stream up to the size of a file before the next look at the limits.
                elif limits["output_bytes"] < limits["file_bytes"] <= _largest(streams[1:]):
                    killed_by = killed_by or "output_bytes"
                return exit_code, killed_by
            if pid == 0:
                break
        if killed_by is None:
            if time.monotonic() > deadline:
                killed_by = "wall_seconds"
            elif _largest(streams[1:]) > limits["output_bytes"]:
                killed_by = "output_bytes"
            elif confined:
                killed_by = _excess(limits, os.statvfs(streams[0]))
        if killed_by is not None:
            _kill(everyone)


def _largest(streams: list[int]) -> int:
    return max(os.fstat(stream).st_size for stream in streams)


def _excess(limits: dict[str, Any], disk: os.statvfs_result) -> str | None:
    """Return the limit that all processes together are beyond."""
    if (disk.f_files - disk.f_ffree) * _SMALLEST_FILE > limits["disk_bytes"]:
        return "disk_bytes"
    others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    if len(others) > limits["processes"]:
        return "processes"
    threads = kibibytes = 0
    for name in others:
        try:
            with open(f"/proc/{name}/status", "rb") as file:
                lines = file.read().splitlines()
        except OSError:  # it has ended
            continue
        status = dict(line.split(b":", 1) for line in lines if b":" in line)
        threads += int(status[b"Threads"])
        kibibytes += sum(int(status[key].split()[0]) for key in (b"RssAnon", b"RssShmem") if key in status)
    if threads > limits["processes"]:
        return "processes"
    return "memory_bytes" if kibibytes * 1024 > limits["memory_bytes"] else None


def _kill(everyone: int) -> None:
    try:
        os.kill(everyone, _signal.SIGKILL)
    except ProcessLookupError:  # there is nobody
        pass


def disk_use(size: int) -> int:
    """Return the bytes that a file of this size counts for."""
    return max(-(-size // _PAGE) * _PAGE, _SMALLEST_FILE)


def _files(budget: int) -> Iterator[bytes]:
    """Yield path, mode and content of every regular file. Raises an OverflowError beyond the budget."""
    pending = ["."]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:  # not readable, or too deep
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                try:
                    with open(entry.path, "rb") as file:
                        information = os.fstat(file.fileno())
                        budget -= disk_use(information.st_size)
                        if budget < 0:
                            raise OverflowError
                        content = file.read()
                except OSError:
                    continue
                yield from (os.fsencode(entry.path[2:]), b"%o" % (information.st_mode & 0o777), content)


def _report(*parts: bytes) -> None:
    for part in parts:
        sys.stdout.buffer.write(len(part).to_bytes(8, "big") + part)
    sys.stdout.buffer.flush()
