"""`composer-replication ingest` in processes of its own: pipes, stops, full disks, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from ingestion.sessions_on_disk import names, session, turn, write
from processes import command, environment, wait_for
from processes import start as start_command

FILES = 6


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return start_command("ingest", *arguments)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "s1.jsonl", session("a", "b"))
    write(tmp_path / "logs" / "fork.jsonl", session("a", "c"))
    return tmp_path / "logs"


def test_json_is_one_pure_object_and_a_pipe_has_no_colours(logs: Path, tmp_path: Path) -> None:
    process = start(logs, "-o", tmp_path / "out", "--json")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    figures = json.loads(out)
    assert figures["files"]["logs"] == 2
    assert figures["stats"]["n_states_emitted"] == 3
    assert figures["copied_turns"] == 1
    table, err = start(logs, "-o", tmp_path / "out").communicate()
    assert err == ""
    assert "\x1b" not in table


@pytest.fixture(scope="module")
def many_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for several tasks of a second or so."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(FILES):
        log = write(folder / f"s{number}.jsonl", session(f"{number}"))
        bulk = "".join(
            json.dumps(record) + "\n" for n in range(2500) for record in turn(f"{number}-{n}", result="word " * 500)
        )
        with log.open("a") as file:
            file.write(bulk)
    return folder


def wait_until_busy(process: subprocess.Popen[str], folder: Path) -> None:
    """Until a first source is done, and others are being read."""
    manifest = folder / "manifest.jsonl"

    def busy() -> bool:
        assert process.poll() is None, process.communicate()
        return manifest.exists() and manifest.read_bytes().endswith(b"\n")

    wait_for(busy)


def processes_of(group: int) -> list[int]:
    """The ids of the readers that a run has started."""
    listed = subprocess.run(
        ["ps", "-e", "-ww", "-o", "pgid=,pid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [int(pid) for owner, pid, command in rows if owner == str(group) and "spawn_main" in command]


@pytest.mark.parametrize(
    ("number", "to_all", "code"), [(signal.SIGINT, True, 130), (signal.SIGINT, False, 130), (signal.SIGKILL, False, -9)]
)
def test_a_run_that_is_stopped_leaves_no_process_and_nothing_half_written(
    many_logs: Path, tmp_path: Path, number: signal.Signals, to_all: bool, code: int
) -> None:
    out = tmp_path / "out"
    process = start(many_logs, "-o", out, "-p", "2")
    wait_until_busy(process, out)
    os.kill(process.pid, signal.SIGSTOP)  # or it might be done before the rest of this
    assert processes_of(process.pid)
    second = start(many_logs, "-o", out)
    assert "another run is writing here" in second.communicate()[1]
    assert second.returncode == 1
    (os.killpg if to_all else os.kill)(process.pid, number)
    os.kill(process.pid, signal.SIGCONT)
    err = process.communicate()[1]
    assert process.returncode == code
    if code == 130:
        assert err == "stopped\n"
    wait_for(lambda: not processes_of(process.pid))
    for path in (out / "traces").glob("*.jsonl"):
        assert path.read_bytes().endswith(b"}\n")
    last = start(many_logs, "-o", out, "--json")
    figures = json.loads(last.communicate()[0])
    assert figures["files"]["unchanged"] >= 1
    assert figures["stats"]["n_states_emitted"] == FILES * 2501
    assert all(not name.endswith(".part") for name in names(out / "traces"))


def test_readers_leave_ctrl_c_to_the_process_that_started_them(many_logs: Path, tmp_path: Path) -> None:
    process = start(many_logs, "-o", tmp_path / "out", "-p", "2", "--json", "--no-redact")
    wait_until_busy(process, tmp_path / "out")
    for reader in processes_of(process.pid):
        os.kill(reader, signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["stats"]["n_states_emitted"] == FILES * 2501


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(many_logs: Path, tmp_path: Path) -> None:
    log, out = many_logs / "s0.jsonl", tmp_path / "out"
    ingest = command("ingest", log, "-o", out, "--no-redact")
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *ingest]
    result = subprocess.run(limited, capture_output=True, text=True, env=environment(), check=False)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "File too large; make room for it, and run again" in result.stderr
    assert names(out / "traces") == []
    assert start(log, "-o", out, "--no-redact").wait() == 0


def test_a_reader_that_goes_away_ends_it_quietly(many_logs: Path) -> None:
    process = start("--explain", many_logs / "s0.jsonl", "--no-redact")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()
