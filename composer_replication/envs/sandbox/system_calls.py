"""The second wall: a seccomp filter of system calls.

Namespaces and limits leave these open: memory that no limit counts, namespaces inside the sandbox with mounts of their
own, the supervisor's priority and limits (it has the same user), parts of the kernel with a history of holes, and
sockets that know no namespaces, such as those from a virtual machine to its host.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

from composer_replication.envs.sandbox.contract import SandboxUnavailableError

# By machine: its name in the kernel's audit interface, and the column of its numbers in the tables.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_REFUSED = (
    "memfd_create=319/279 memfd_secret=447/447 shmget=29/194 semget=64/190 msgget=68/186 "  # memory
    "unshare=272/97 setpriority=141/140 ioprio_set=251/30 "  # namespaces, and the supervisor
    "add_key=248/217 bpf=321/280 io_uring_setup=425/425 keyctl=250/219 perf_event_open=298/241 ptrace=101/117 "
    "request_key=249/218 syslog=103/116 userfaultfd=323/282"  # the kernel
)
# Allowed on the caller alone, which is process 0 to them.
_ON_THE_CALLER = (
    "prlimit64=302/261 sched_setaffinity=203/122 sched_setattr=314/274 sched_setparam=142/118 "
    "sched_setscheduler=144/119"
)
_CLONE, _CLONE3, _SOCKET = "clone=56/220", "clone3=435/435", "socket=41/198"
_NEW_NAMESPACES = 0x7E020000  # the CLONE_NEW… flags
_SOCKET_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6

# Instructions of the classic BPF machine, and where it finds what: number, machine, low half of the first argument.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_FOREIGN = 0x40000000  # from here on, numbers of x86_64 are those of its 32-bit pointers


def seccomp_filter(machine: str) -> bytes:
    """Return the filter in the form that the kernel takes.

    Raises:
        SandboxUnavailableError: if the numbers of this machine's system calls are not in the tables.
    """
    if machine not in _MACHINES:
        raise SandboxUnavailableError(f"the sandbox is for {' and '.join(_MACHINES)}, and this machine is {machine}")
    name, column = _MACHINES[machine]

    def numbers(table: str) -> list[int]:
        return [int(entry.partition("=")[2].split("/")[column]) for entry in table.split()]

    lines = [(_LOAD, 0, 0, _MACHINE_AT), (_EQUAL, 1, 0, name), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    lines += [(_AT_LEAST, 0, 1, _FOREIGN), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for number in numbers(_CLONE3):  # the C library then takes clone, whose flags a filter can see
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for number in numbers(_REFUSED):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    for number in numbers(_ON_THE_CALLER):
        lines += _allowed_with(number, (0,), errno.EPERM)
    for number in numbers(_SOCKET):
        lines += _allowed_with(number, _SOCKET_FAMILIES, errno.EAFNOSUPPORT)
    for number in numbers(_CLONE):
        lines += [(_EQUAL, 0, 3, number), (_LOAD, 0, 0, _ARGUMENT_AT), (_ANY_BIT, 0, 1, _NEW_NAMESPACES)]
    lines += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _allowed_with(number: int, first_arguments: Sequence[int], error: int) -> list[tuple[int, int, int, int]]:
    """Return the instructions that end a system call with an error, unless its first argument is one of these."""
    count = len(first_arguments)
    tests = [(_EQUAL, count - place, 0, value) for place, value in enumerate(first_arguments)]
    body = [(_LOAD, 0, 0, _ARGUMENT_AT), *tests, (_RETURN, 0, 0, _ERROR | error), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(body), number), *body]
