"""The scratch folder and the reports of a run, in both kinds of sandbox."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confined import PATIENT, new_mark, processes_with, run_marked, run_python
from processes import wait_for

from composer_replication.envs.sandbox import BubblewrapSandbox, Limits, ProcessSandbox, Sandbox


@pytest.fixture(params=[BubblewrapSandbox, ProcessSandbox])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with request.param(PATIENT) as made:
        yield made


def test_files_go_in_and_come_out(sandbox: Sandbox) -> None:
    sandbox.write("a/b/input.txt", "zwölf\n")
    sandbox.write("./a//c.txt", "")
    result = sandbox.run(
        ["sh", "-c", "cat a/b/input.txt -; rm a/c.txt; echo run > s.sh; chmod 700 s.sh"], stdin="stdin"
    )
    assert (result.exit_code, result.stdout, result.stderr) == (0, "zwölf\nstdin", "")
    assert (result.truncated, result.killed_by) == (False, None)
    assert sandbox.files() == ["a/b/input.txt", "s.sh"]
    assert sandbox.read("s.sh") == "run\n"
    sandbox.write("s.sh", "#!/bin/sh\npwd -P; exit 3\n")  # may be run as before
    result = sandbox.run(["./s.sh"])
    assert result.exit_code == 3
    assert result.stdout.endswith("/scratch\n")


def test_names_and_contents_of_any_bytes(sandbox: Sandbox) -> None:
    run_python(sandbox, "import os\nopen(b'caf\\xe9', 'wb').write(bytes(range(256)))\nos.mkdir('empty')")
    (name,) = sandbox.files()
    assert sandbox.read(name)[:128] == "".join(map(chr, range(128)))
    result = run_python(sandbox, "import os\nprint(os.listdir(b'.'), len(open(b'caf\\xe9', 'rb').read()))")
    assert result.stdout == "[b'caf\\xe9'] 256\n"


def test_equal_programs_have_equal_output(sandbox: Sandbox) -> None:
    program = [*sandbox.python, "-c", "print({str(number) for number in range(100)})"]
    assert sandbox.run(program).stdout == sandbox.run(program).stdout


def test_a_command_that_cannot_start(sandbox: Sandbox) -> None:
    result = sandbox.run(["no-such-command"])
    assert (result.exit_code, result.stderr) == (127, "no-such-command: No such file or directory\n")
    assert sandbox.run(["/usr"]).stderr == "/usr: Permission denied\n"
    with pytest.raises(ValueError, match="command must name a program, got nothing"):
        sandbox.run([])


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", ".", "nul\0"])
def test_paths_stay_inside(sandbox: Sandbox, path: str) -> None:
    for use in (lambda: sandbox.read(path), lambda: sandbox.write(path, "")):
        with pytest.raises(ValueError, match="path must name a file in the scratch folder, got"):
            use()


def test_a_file_is_no_folder(sandbox: Sandbox) -> None:
    sandbox.write("a/b", "")
    for path, other in (("a", "a/b"), ("a/b/c", "a/b")):
        with pytest.raises(ValueError, match=f"path '{path}' cannot be a file beside '{other}'"):
            sandbox.write(path, "")


def test_the_host_may_not_fill_the_disk_either(sandbox: Sandbox) -> None:
    sandbox.write("large", "x" * 100_000)
    with pytest.raises(ValueError, match="the scratch folder takes 102400 bytes: disk_bytes must be more than 100000"):
        sandbox.run(["true"], limits=Limits(disk_bytes=100_000))
    assert sandbox.run(["cat"], stdin="y" * 100_000, limits=Limits(disk_bytes=400_000)).stdout == "y" * 100_000


def test_a_closed_sandbox_is_gone(sandbox: Sandbox) -> None:
    sandbox.write("file", "")
    sandbox.close()
    sandbox.close()
    for use in (sandbox.files, lambda: sandbox.read("file"), lambda: sandbox.run(["true"])):
        with pytest.raises(ValueError, match="the sandbox is closed: make another one"):
            use()


def test_nothing_is_left_on_the_host(sandbox: Sandbox) -> None:
    before = {*Path(tempfile.gettempdir()).glob("sandbox-*")}
    mounts, mark = Path("/proc/self/mountinfo").read_text(), new_mark()
    sandbox.write("file", mark)
    run_marked(sandbox, mark, "import os\nos.chmod('.', 0)\nopen('/tmp/' + os.environ['MARK'], 'w')\nos.mkdir('x', 0)")
    sandbox.close()
    Path("/tmp", mark).unlink(missing_ok=not isinstance(sandbox, ProcessSandbox))
    assert {*Path(tempfile.gettempdir()).glob("sandbox-*")} <= before
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert processes_with(mark) == []  # the command itself has been waited for


def test_runs_at_the_same_time_do_not_meet(sandbox: Sandbox) -> None:
    def one(number: int) -> tuple[str, list[str]]:
        with type(sandbox)(PATIENT) as own:  # type: ignore[call-arg]
            own.write(f"{number}", f"{number}")
            return own.run(["sh", "-c", "cat *; echo > made"]).stdout, own.files()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(8))) == [(f"{number}", [f"{number}", "made"]) for number in range(8)]


def test_a_sandbox_that_breaks_down_ends_the_run_and_not_the_host(sandbox: Sandbox) -> None:
    sandbox.write("kept", "kept")
    mark = new_mark()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_marked, sandbox, mark, "import time\nopen('new', 'w')\ntime.sleep(1000)")
        wait_for(lambda: processes_with(mark) != [])
        (process,) = processes_with(mark)
        supervisor = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(supervisor, signal.SIGKILL)
        result = run.result()
    assert (result.exit_code, result.killed_by, result.stdout) == (-9, "sandbox", "")
    assert sandbox.files() == ["kept"]
    wait_for(lambda: processes_with(mark) == [])
