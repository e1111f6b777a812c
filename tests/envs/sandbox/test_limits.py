"""Programs that take more than their share: bombs, floods and loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confined import PATIENT, new_mark, processes_with, run_marked, run_python

from composer_replication.envs.sandbox import BubblewrapSandbox, Limits
from composer_replication.envs.sandbox.contract import MEBIBYTE


@pytest.fixture
def sandbox() -> Iterator[BubblewrapSandbox]:
    with BubblewrapSandbox(PATIENT) as made:
        made.write("kept", "kept")
        yield made


@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
        "import threading, time\nwhile True:\n"
        "    try:\n        threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "    except RuntimeError:\n        time.sleep(1000)\n",
        "import os\nos.execvp('sh', ['sh', '-c', 'bomb() { bomb | bomb & }; while :; do bomb; done'])",
    ],
    ids=["fork", "threads", "shell"],
)
def test_a_bomb_of_processes(sandbox: BubblewrapSandbox, bomb: str) -> None:
    mark = new_mark()
    result = run_marked(sandbox, mark, bomb, limits=replace(PATIENT, processes=12))
    assert result.killed_by == "processes" or "Cannot fork" in result.stderr
    assert processes_with(mark) == []
    assert sandbox.files() == ["kept"]


def test_the_kernel_counts_processes_too(sandbox: BubblewrapSandbox) -> None:
    result = run_python(
        sandbox,
        "import os, resource, time\n"
        "print(resource.getrlimit(resource.RLIMIT_NPROC))\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (5, 5))\n"
        "for count in range(10):\n"
        "    try:\n        child = os.fork()\n"
        "    except BlockingIOError:\n        break\n"
        "    if child == 0:\n        time.sleep(1000)\n"
        "print(count)\n",
        limits=replace(PATIENT, processes=12),
    )
    assert result.killed_by is None
    limit, count = result.stdout.splitlines()
    assert limit == "(20, 20)"
    assert int(count) <= 5  # for root, the kernel would not refuse


def test_a_bomb_of_memory(sandbox: BubblewrapSandbox) -> None:
    limits = replace(PATIENT, memory_bytes=64 * MEBIBYTE)
    fill = "taken = [bytearray(2**20) for _ in range({})]\n"
    result = run_python(sandbox, fill.format(1000), limits=limits)
    assert (result.exit_code, result.killed_by) == (1, None)
    assert result.stderr.endswith("MemoryError\n")
    # Each is within the limit, and all of them together are not.
    alone, together = "import time\n", "import os, time\nfor _ in range(3):\n    os.fork()\n"
    wait = "print('enough', flush=True)\ntime.sleep({})\n"
    assert run_python(sandbox, alone + fill.format(24) + wait.format(0), limits=limits).stdout == "enough\n"
    result = run_python(sandbox, together + fill.format(24) + wait.format(1000), limits=limits)
    assert result.killed_by == "memory_bytes"
    shared = "import mmap, os, time\nfor _ in range(3):\n    os.fork()\nmap = mmap.mmap(-1, 24 << 20)\n"
    touch = "for page in range(0, 24 << 20, 4096):\n    map[page] = 1\ntime.sleep(1000)\n"
    assert run_python(sandbox, shared + touch, limits=limits).killed_by == "memory_bytes"


def test_endless_output(sandbox: BubblewrapSandbox) -> None:
    limits = replace(PATIENT, output_bytes=1000)
    result = sandbox.run(["yes"], limits=limits)
    assert (result.killed_by, result.truncated, result.timed_out) == ("output_bytes", True, False)
    assert result.stdout == "y\n" * 500 + "\n[cut at 1000 bytes]"
    result = run_python(sandbox, "import sys\nwhile True: sys.stderr.write('e' * 10)", limits=limits)
    assert (result.killed_by, result.stderr) == ("output_bytes", "e" * 1000 + "\n[cut at 1000 bytes]")
    # So fast that it reaches the size of a file before anybody looks: by signal, and by an error.
    fast = replace(limits, file_bytes=2000)
    result = sandbox.run(["yes"], limits=fast)
    assert (result.killed_by, result.truncated) == ("output_bytes", True)
    result = run_python(sandbox, "import os\nfor _ in range(3): os.write(1, b'x' * 1500)", limits=fast)
    assert (result.killed_by, result.truncated) == ("output_bytes", True)
    result = run_python(sandbox, "print('x' * 999)", limits=limits)
    assert (result.killed_by, result.truncated, len(result.stdout)) == (None, False, 1000)


@pytest.mark.parametrize(
    "ignored", ["", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"], ids=["plain", "ignored"]
)
def test_endless_work(sandbox: BubblewrapSandbox, ignored: str) -> None:
    result = run_python(sandbox, f"{ignored}while True: pass", limits=replace(PATIENT, cpu_seconds=1))
    assert (result.exit_code, result.killed_by, result.timed_out) == (-9 if ignored else -24, "cpu_seconds", True)


def test_endless_time(sandbox: BubblewrapSandbox) -> None:
    mark = new_mark()
    result = run_marked(sandbox, mark, "import time\ntime.sleep(1000)", limits=replace(PATIENT, wall_seconds=0.2))
    assert (result.exit_code, result.killed_by, result.timed_out) == (-9, "wall_seconds", True)
    assert result.seconds >= 0.2
    assert processes_with(mark) == []


FILL = """
import os, sys
written = 0
for folder in ('/', '/dev', '/dev/shm', '/etc', '/proc', '/run', '/tmp', '/usr', '/var/tmp', '.'):
    for number in range(1000):
        try:
            with open(os.path.join(folder, str(number)), 'wb', buffering=0) as file:
                while True:
                    written += file.write(bytes(2**16))
        except OSError as error:
            if error.errno != 27:  # the file is too large, and the next one follows
                break
print(written)
"""


def test_filling_the_disk(sandbox: BubblewrapSandbox) -> None:
    limits = replace(PATIENT, disk_bytes=2 * MEBIBYTE, file_bytes=MEBIBYTE // 2)
    result = run_python(sandbox, FILL, limits=limits)
    assert result.stderr == ""
    # It fails to print where the disk is full, as it would anywhere.
    assert result.exit_code == 120 or MEBIBYTE <= int(result.stdout) <= 2 * MEBIBYTE
    assert sum(len(content) for _, content in sandbox._files().values()) <= 2 * MEBIBYTE


@pytest.mark.parametrize(
    "flood",
    [
        "number = 0\nwhile True:\n    open(str(number), 'w').close()\n    number += 1\n",
        "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')\n",
        "for number in range(100):\n    open(str(number), 'wb').truncate(2**20)\n",
    ],
    ids=["empty files", "folders", "holes"],
)
def test_what_would_fill_the_host_is_not_kept(sandbox: BubblewrapSandbox, flood: str) -> None:
    result = run_python(sandbox, flood, limits=replace(PATIENT, disk_bytes=2 * MEBIBYTE))
    assert result.killed_by == "disk_bytes"
    assert (sandbox.files(), sandbox.read("kept")) == (["kept"], "kept")


def test_files(sandbox: BubblewrapSandbox) -> None:
    limits = replace(PATIENT, open_files=20, file_bytes=5000)
    result = run_python(sandbox, "taken = [open('/dev/null') for _ in range(30)]", limits=limits)
    assert "Too many open files" in result.stderr
    result = run_python(sandbox, "open('large', 'wb', buffering=0).write(bytes(6000))", limits=limits)
    assert len(sandbox.read("large")) == 5000


def test_limits_must_make_sense() -> None:
    with pytest.raises(ValueError, match="wall_seconds must be a positive finite number, got 0"):
        Limits(wall_seconds=0)
    with pytest.raises(ValueError, match=r"processes must be a positive whole number, got 1\.5"):
        Limits(processes=1.5)  # type: ignore[arg-type]
