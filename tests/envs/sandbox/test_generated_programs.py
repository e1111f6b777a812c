"""Programs put together from nasty parts leave no process, file, port or mount behind."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

from confined import new_mark, processes_with, run_marked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import ROOT

from composer_replication.envs.sandbox import BubblewrapSandbox, Limits
from composer_replication.envs.sandbox.contract import MEBIBYTE

LIMITS = Limits(
    wall_seconds=1, cpu_seconds=1, memory_bytes=128 * MEBIBYTE, processes=12, disk_bytes=MEBIBYTE, output_bytes=10_000
)
BEGIN = """
import ctypes, os, signal, socket, subprocess, sys, threading, time
mark, port, *places = sys.argv[1:]
port = int(port)
"""
# Each is a program of its own; an error in one does not end the next.
PARTS = (
    "if os.fork() == 0: time.sleep(1000)",
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)",
    "for _ in range(100): os.fork()",
    "subprocess.Popen(['sleep', '1000'], start_new_session=True)",
    "subprocess.Popen(['sh', '-c', 'trap \"\" HUP INT TERM; sleep 1000 & sleep 1000'])",
    "[threading.Thread(target=time.sleep, args=(1000,), daemon=True).start() for _ in range(4)]",
    "for place in places:\n    try: open(os.path.join(place, mark), 'w').write(mark)\n    except OSError: pass",
    "for place in places:\n    try: os.makedirs(os.path.join(place, mark, 'deep'))\n    except OSError: pass",
    "for place in places:\n    try: os.symlink('/', os.path.join(place, mark + 'link'))\n    except OSError: pass",
    "for place in places:\n    try: os.mkfifo(os.path.join(place, mark + 'pipe'))\n    except OSError: pass",
    "os.symlink('/proc/self/fd/0', mark + 'stdin')",
    "os.rename('/tmp/scratch', '/tmp/moved')",
    "os.chmod('.', 0)",
    "os.chdir('/')",
    "server = socket.create_server(('127.0.0.1', port))",
    "server = socket.create_server(('', 0)); server.listen()",
    "socket.create_connection(('127.0.0.1', port), timeout=1).sendall(mark.encode())",
    "name = socket.socket(socket.AF_UNIX); name.bind('\\0' + mark); name.listen()",
    "name = socket.socket(socket.AF_UNIX); name.bind('/tmp/' + mark); name.listen()",
    "os.kill(os.getppid(), signal.SIGKILL)",
    "os.kill(-1, signal.SIGSTOP)",
    "os.kill(-1, signal.SIGKILL)",
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "for number in {*range(1, 65)} - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)",
    "print('x' * 100_000)",
    "os.write(2, bytes(100_000))",
    "os.close(1); os.close(2)",
    "kept = [bytearray(2**20) for _ in range(200)]",
    "def deeper(): deeper()\ndeeper()",
    "open('large', 'wb').write(bytes(2**22))",
    "[open('/dev/null') for _ in range(100)]",
    "ctypes.CDLL(None).unshare(0x10000000)",
    "ctypes.CDLL(None).ptrace(0, 0, 0, 0)",
    "ctypes.string_at(0)",
    "os.setpgid(0, 0)",
    "os.environ.clear()",
    "os._exit(0)",
    "os.execv('/bin/sleep', ['sleep', '1000'])",
    "os.execv(sys.executable, [sys.executable, '-c', 'import os; os.fork()'])",
    "sys.exit(7)",
)


def leaves_nothing(parts: list[str]) -> None:
    mark = new_mark()
    places = [tempfile.gettempdir(), str(Path.home()), str(ROOT), str(Path.cwd()), "/dev/shm", "/var/tmp", "/", "."]
    program = BEGIN + "".join(f"try:\n    exec({part!r})\nexcept Exception as error: print(error)\n" for part in parts)
    mounts = Path("/proc/self/mountinfo").read_text()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        BubblewrapSandbox(LIMITS) as sandbox,
    ):
        server.setblocking(False)
        result = run_marked(sandbox, mark, program, mark, server.getsockname()[1], *places, limits=LIMITS)
        assert result.killed_by != "sandbox"
        assert processes_with(mark) == []
        for name in sandbox.files():  # none that leads elsewhere, or makes the reader wait
            sandbox.read(name)
        try:
            server.accept()
        except BlockingIOError:
            pass
        else:
            raise AssertionError("a connection has come out of the sandbox")
    assert [path for place in places for path in Path(place).glob(f"{mark}*")] == []
    assert f"@{mark}" not in Path("/proc/net/unix").read_text()
    assert Path("/proc/self/mountinfo").read_text() == mounts


programs = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6)
plainly = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@settings(plainly, max_examples=30)
@given(programs)
def test_a_program_leaves_nothing(parts: list[str]) -> None:
    leaves_nothing(parts)


@settings(plainly, max_examples=300)
@given(programs)
def test_300_programs_leave_nothing(parts: list[str]) -> None:
    leaves_nothing(parts)
