"""Programs that try to get out of the sandbox, each for real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confined import PATIENT, new_mark, processes_with, run_marked, run_python
from processes import ROOT, environment, wait_for

from composer_replication.envs.sandbox import (
    BubblewrapSandbox,
    SandboxUnavailableError,
    bubblewrap,
    bubblewrap_problem,
    make_sandbox,
)

# Evaluates each argument, and prints by argument the result or the name of the error.
TRY_ALL = """
import ctypes, json, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def read(path):
    with open(path, "rb") as file:
        return file.read(1000).decode(errors="replace")
def write(path):
    with open(path, "ab") as file:
        file.write(b"x")
answers = {}
for attempt in sys.argv[1:]:
    try:
        answers[attempt] = str(eval(attempt))
    except BaseException as error:
        answers[attempt] = type(error).__name__
print(json.dumps(answers))
"""
REFUSALS = {"PermissionError", "OSError", "FileNotFoundError"}


@pytest.fixture
def sandbox() -> Iterator[BubblewrapSandbox]:
    with BubblewrapSandbox(PATIENT) as made:
        yield made


def attempts(sandbox: BubblewrapSandbox, *expressions: str) -> dict[str, str]:
    result = run_python(sandbox, TRY_ALL, *expressions)
    assert result.exit_code == 0, result
    answers: dict[str, str] = json.loads(result.stdout)
    return answers


def test_it_runs_what_models_write(sandbox: BubblewrapSandbox) -> None:
    assert bubblewrap_problem() == ""
    sandbox.write("package/solution.py", "def double(number):\n    return 2 * number\n")
    sandbox.write(
        "test_solution.py",
        "import unittest\nfrom package.solution import double\n"
        "class TestDouble(unittest.TestCase):\n"
        "    def test_it(self):\n        self.assertEqual(double(2), 5)\n",
    )
    result = sandbox.run([*sandbox.python, "-m", "unittest"])
    assert (result.exit_code, result.killed_by) == (1, None)
    assert "AssertionError: 4 != 5" in result.stderr
    # No installed packages inside, and no compiled files among those of the program.
    assert sandbox.run([*sandbox.python, "-c", "import pip"]).stderr.endswith("No module named 'pip'\n")
    assert sandbox.files() == ["package/solution.py", "test_solution.py"]
    # A server of its own, threads, processes and locks work.
    result = run_python(
        sandbox,
        "import multiprocessing, socket, subprocess, threading\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "thread = threading.Thread(target=lambda: server.accept()[0].sendall(b'served'))\n"
        "thread.start()\n"
        "print(socket.create_connection(server.getsockname()).recv(6).decode())\n"
        "with multiprocessing.Pool(2) as pool:\n    print(pool.map(abs, [-1, -2]))\n"
        "print(subprocess.run(['echo', 'said'], stderr=subprocess.DEVNULL, stdout=-1, text=True).stdout)\n",
    )
    assert result.stdout == "served\n[1, 2]\nsaid\n\n", result.stderr


def test_a_secret_outside_is_not_there(
    sandbox: BubblewrapSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = new_mark()
    monkeypatch.setenv("PLANTED_SECRET", secret)
    planted = [tmp_path / "secret", *(folder / f".{secret}" for folder in (ROOT, Path.home(), Path("/dev/shm")))]
    program = (
        "import glob, os, sys\n"
        "print(os.environ)\n"
        "ways = ['', '/proc/1/root', '/proc/self/root', '/proc/1/cwd/../..', '/proc/self/cwd/../../..']\n"
        "for path in [*(way + path for way in ways for path in sys.argv[1:]), *glob.glob('/proc/*/environ')]:\n"
        "    try:\n        print(open(path).read())\n"
        "    except OSError as error:\n        print(type(error).__name__)\n"
    )
    try:
        for path in planted:
            path.write_text(secret)
        here = subprocess.run([sys.executable, "-c", program, *planted], capture_output=True, text=True, check=True)
        assert here.stdout.count(secret) > len(planted)
        result = run_python(sandbox, program, *planted)
    finally:
        for path in planted:
            path.unlink(missing_ok=True)
    assert result.exit_code == 0
    assert secret not in result.stdout
    assert result.stdout.count("FileNotFoundError") >= len(planted)


def test_nothing_is_inherited(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        names = "sorted(os.environ)"
        files = "len(os.listdir('/proc/self/fd')) - 1"  # without that of the folder itself
        answers = attempts(sandbox, names, files, "os.getcwd()", "os.uname().nodename")
    expected = ["HOME", "LANG", "MALLOC_ARENA_MAX", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"]
    assert list(answers.values()) == [str(expected), "3", "/tmp/scratch", "sandbox"]


def test_one_place_is_writable(sandbox: BubblewrapSandbox) -> None:
    text = run_python(sandbox, "print(open('/proc/self/mountinfo').read().strip())").stdout
    mounts = {fields[4]: set(fields[5].split(",")) for fields in map(str.split, text.splitlines())}
    devices = set(bubblewrap._DEVICES)
    assert {place for place, flags in mounts.items() if "rw" in flags} == {"/tmp", *devices}
    assert {place for place, flags in mounts.items() if "nodev" not in flags} == devices
    assert all("nosuid" in flags for flags in mounts.values())
    system = {place.strip("/") for place in bubblewrap._SYSTEM}
    listed = attempts(sandbox, "' '.join(os.listdir('/'))").popitem()[1].split()
    assert set(listed) <= {"dev", "etc", "proc", "tmp", "usr", Path(sys.base_prefix).parts[1], *system}
    places = ("/x", "/dev/x", "/etc/x", "/usr/x", f"{sys.base_prefix}/lib/x", os.__file__, "/proc/self/comm")
    answers = attempts(sandbox, *(f"write({place!r})" for place in places))
    assert set(answers.values()) <= REFUSALS, answers


def test_it_has_no_rights(sandbox: BubblewrapSandbox) -> None:
    text = run_python(sandbox, "print(open('/proc/self/status').read(), open('/proc/self/uid_map').read())").stdout
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert [int(status[f"Cap{kind}"], 16) for kind in ("Prm", "Eff", "Amb")] == [0, 0, 0]
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert os.getuid() != 0 or status["Groups"].strip() == ""
    assert status["Uid"].split() == ["1000"] * 4
    # On the host it is not root either, who could change the nodes of devices.
    (outside,) = (line.split()[1] for line in text.splitlines() if line.split()[:1] == ["1000"])
    assert outside != "0"
    as_it_is = Path("/dev/null").stat().st_mode & 0o777
    assert set(attempts(sandbox, f"os.chmod('/dev/null', {as_it_is})", "os.setuid(0)").values()) <= REFUSALS


def test_doors_are_shut(sandbox: BubblewrapSandbox) -> None:
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    doors = (
        # namespaces and mounts of its own, where it would be root and have memory without limit
        *("call('unshare', 0x10000000)", "call('unshare', 0x20000)", "call('mount', b'', b'/tmp', b'tmpfs', 0, 0)"),
        *(f"call('syscall', {clone}, 0x10000011, 0, 0, 0, 0)", "call('syscall', 435, 0, 0)"),
        # memory that nothing counts
        *("os.memfd_create('x')", "call('shmget', 0, 4096, 0o1600)", "call('semget', 0, 1, 0o1600)"),
        # the supervisor
        *("call('ptrace', 16, 1, 0, 0)", "read('/proc/1/mem')", "read('/proc/1/environ')"),
        *(
            "os.listdir('/proc/1/fd')",
            "os.listdir('/proc/1/root')",
            "write('/proc/1/fd/1')",
            "os.readlink('/proc/1/cwd')",
        ),
        *("resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))", "os.sched_setscheduler(1, 5, os.sched_param(0))"),
        *("os.sched_setaffinity(1, [0])", "os.setpriority(os.PRIO_PROCESS, 1, 19)"),
        # the kernel
        *("write('/proc/sysrq-trigger')", "write('/proc/sys/kernel/core_pattern')", "os.mknod('x', 0o60600, 1)"),
        # sockets without namespaces: netlink, crypto, from a virtual machine to its host
        *(f"socket.socket({family}, socket.SOCK_DGRAM)" for family in (16, 38, 40)),
    )
    answers = attempts(sandbox, *doors)
    assert {door: answer for door, answer in answers.items() if answer not in REFUSALS} == {}


def test_no_network(sandbox: BubblewrapSandbox) -> None:
    name = new_mark()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        packets.bind(("127.0.0.1", 0))
        abstract.bind(f"\0{name}")
        abstract.listen()
        for one in (server, packets, abstract):
            one.setblocking(False)
        loopback = (*server.getsockname(), packets.getsockname()[1])
        answers = attempts(
            sandbox,
            f"socket.create_connection({loopback[:2]})",
            "socket.create_connection(('192.0.2.1', 53))",
            "socket.create_connection(('example.com', 80))",
            f"socket.socket(socket.AF_UNIX).connect('\\0{name}')",
            f"socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {loopback[2]}))",
        )
        for one in (server.accept, abstract.accept, lambda: packets.recv(1)):
            with pytest.raises(BlockingIOError):  # nothing has come
                one()
    assert list(answers.values()) == ["ConnectionRefusedError", "OSError", "gaierror", "ConnectionRefusedError", "1"]


def test_nobody_is_killed_but_its_own(sandbox: BubblewrapSandbox) -> None:
    result = run_python(
        sandbox,
        "import os, signal, time\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(1000)\n"
        "for target in (1, os.getppid(), -1):\n"
        "    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):\n"
        "        try:\n            os.kill(target, number)\n"
        "        except (PermissionError, ProcessLookupError):\n            pass\n"
        # Whichever of the signals came first has ended it.
        "print('still here', os.waitpid(child, 0)[1] != 0)\n",
    )
    assert (result.exit_code, result.stdout) == (0, "still here True\n")


def test_a_daemon_does_not_stay(sandbox: BubblewrapSandbox) -> None:
    mark = new_mark()
    result = run_marked(
        sandbox,
        mark,
        "import os, signal, time\n"
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for number in range(1, 32):\n"
        "        if number not in (signal.SIGKILL, signal.SIGSTOP):\n"
        "            signal.signal(number, signal.SIG_IGN)\n"
        "    if os.fork() == 0:\n"
        "        os.write(writer, b'daemon')\n"
        "        time.sleep(1000)\n"
        "    os._exit(0)\n"
        "print(os.read(reader, 6))\n",
    )
    assert result.stdout == "b'daemon'\n"
    assert processes_with(mark) == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("kind", ["bubblewrap", "process"])
def test_all_of_it_ends_with_the_host(kind: str, end: signal.Signals) -> None:
    mark = new_mark()
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from confined import run_marked\n"
        "from composer_replication.envs.sandbox import make_sandbox\n"
        "try:\n    run_marked(make_sandbox(sys.argv[3]), sys.argv[2], 'import time; time.sleep(1000)')\n"
        "except KeyboardInterrupt:\n    sys.stdin.read()\n"  # it goes on, without the run
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), mark, kind]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE) as host:
        wait_for(lambda: processes_with(mark) != [])
        host.send_signal(end)
        wait_for(lambda: processes_with(mark) == [])


def test_links_lead_nowhere(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("planted")
    result = run_python(
        sandbox,
        "import os, socket, sys\n"
        "os.symlink(sys.argv[1], 'link')\n"
        "os.symlink(os.path.dirname(sys.argv[1]), 'folder')\n"
        "os.symlink('/proc/self/environ', 'environment')\n"
        "os.mkfifo('pipe')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\n"
        "open('own', 'w').write('own')\n"
        "os.symlink('own', 'inside')\n",
        secret,
    )
    assert (result.exit_code, sandbox.files()) == (0, ["own"])
    for name in ("link", "folder/secret", "environment", "pipe", "socket", "inside"):
        with pytest.raises(FileNotFoundError, match="the scratch folder has no file"):
            sandbox.read(name)
    sandbox.write("link", "overwritten")
    sandbox.write("folder/secret", "overwritten")
    assert sandbox.run(["cat", "link", "folder/secret"]).stdout == "overwritten" * 2
    assert secret.read_text() == "planted"


def test_the_scratch_folder_itself_may_be_replaced(sandbox: BubblewrapSandbox) -> None:
    sandbox.write("old", "old")
    result = run_python(
        sandbox,
        "import os\n"
        "os.rename('/tmp/scratch', '/tmp/elsewhere')\n"
        "os.symlink('/usr', '/tmp/scratch')\n"
        "open('/tmp/elsewhere/new', 'w').write('new')\n"
        "os.chmod('/tmp/elsewhere', 0)\n",
    )
    assert (result.exit_code, sandbox.files()) == (0, ["new", "old"])


def test_the_grader_stays_as_it_was(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    grader = tmp_path / "grader.py"
    grader.write_text("assert False")
    unittest = "__import__('unittest').__file__"
    answers = attempts(sandbox, f"write({str(grader)!r})", f"write({unittest})", f"os.remove({unittest})")
    assert set(answers.values()) <= REFUSALS, answers
    assert grader.read_text() == "assert False"
    # What is outside the scratch folder is new in every run: modules on the way of an import, settings in a home.
    attempts(sandbox, "write('/tmp/unittest.py')", "write('/tmp/.pythonrc')")
    assert attempts(sandbox, "os.listdir('/tmp')", "os.listdir('/dev/shm')")["os.listdir('/tmp')"] == "['scratch']"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the package."""
    monkeypatch.setattr(bubblewrap, "is_available", lambda module: False)
    for cached in (bubblewrap._confinement, bubblewrap_problem):
        cached.cache_clear()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder in which commands are found; nothing of this stays known."""
    monkeypatch.setenv("PATH", str(tmp_path))
    forget(monkeypatch)
    yield tmp_path
    for cached in (bubblewrap._confinement, bubblewrap_problem):
        cached.cache_clear()


def test_a_missing_bubblewrap_is_named_with_the_ways_out(path: Path) -> None:
    with pytest.raises(SandboxUnavailableError) as caught:
        make_sandbox()
    message = str(caught.value)
    assert message.startswith("bubblewrap is not installed: pip install ")
    assert message.endswith("[envs]' (make it work, or allow code to run unconfined with kind='process')")
    assert "\n" not in message


def test_a_bubblewrap_that_fails_says_why(path: Path) -> None:
    (path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    (path / "bwrap").chmod(0o755)
    for kind in ("auto", "bubblewrap"):
        with pytest.raises(
            SandboxUnavailableError, match="the sandbox does not start: bwrap: No permissions to create a new namespace"
        ):
            make_sandbox(kind)
    with pytest.raises(ValueError, match="kind must be one of 'auto', 'bubblewrap', 'process', got 'docker'"):
        make_sandbox("docker")  # type: ignore[arg-type]
