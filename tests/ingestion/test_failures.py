"""What a bad file, a full disk or a stop does to a run: nothing to the other files, and nothing to the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from ingestion.sessions_on_disk import append, session, write
from processes import environment, wait_for

from composer_replication.ingestion import formats, workers
from composer_replication.ingestion.formats import register_reader
from composer_replication.ingestion.pipeline import IngestReport, ingest_logs
from composer_replication.ingestion.source import IngestOptions
from composer_replication.ingestion.store import OutputError, TraceStore, load_traces


def ingest(*paths: Path | str, into: Path, **more: Any) -> IngestReport:
    return ingest_logs(paths, into, **{"processes": 1, **more})


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "traces").iterdir()}


def _sniff(head: formats.Head) -> bool:
    return any("explosive" in record for record in head.records)


def _explode(*_: object) -> Any:
    raise RuntimeError("boom")


def _die(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _linger(*_: object) -> Any:
    time.sleep(600)


@pytest.fixture
def explosive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_ADDED", {})
    register_reader("explosive", _sniff, _explode)


@pytest.mark.usefixtures("explosive")
def test_a_file_that_fails_does_no_harm_to_the_others(tmp_path: Path) -> None:
    bad = write(tmp_path / "logs" / "bad.jsonl", [{"explosive": 1}])
    write(tmp_path / "logs" / "good.jsonl", session("a"))
    for _ in range(2):  # a failure is tried again
        report = ingest(tmp_path / "logs", into=tmp_path / "out")
        assert report.as_dict()["failures"] == {str(bad): "RuntimeError: boom"}
        assert [trace.source.file for trace in load_traces(tmp_path / "out")] == ["good.jsonl"]
    write(bad, session("b"))
    assert ingest(tmp_path / "logs", into=tmp_path / "out").as_dict()["failures"] == {}


@pytest.mark.usefixtures("explosive")
def test_a_source_that_fails_later_keeps_its_traces_if_they_are_what_is_wanted(tmp_path: Path) -> None:
    log = write(tmp_path / "s1.jsonl", session("a"))
    ingest(log, into=tmp_path / "out")
    before = outputs(tmp_path / "out")
    write(log, [{"explosive": 1}])
    assert len(ingest(log, into=tmp_path / "out").with_status("failed")) == 1
    assert outputs(tmp_path / "out") == before
    assert len(list(load_traces(tmp_path / "out"))) == 1
    # Traces that were made with other options are not: they may be unredacted.
    ingest(log, into=tmp_path / "out", options=IngestOptions(redact=False))
    assert outputs(tmp_path / "out") == {}


def test_a_reader_that_comes_later_sees_what_was_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(tmp_path / "new.jsonl", [{"explosive": 1}])
    monkeypatch.setattr(formats, "_ADDED", {})
    assert len(ingest(log, into=tmp_path / "out").with_status("no log")) == 1
    register_reader("explosive", _sniff, _explode)
    assert len(ingest(log, into=tmp_path / "out").with_status("failed")) == 1


def test_a_reader_that_processes_cannot_get_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_ADDED", {})
    monkeypatch.setattr(workers, "_TASK_BYTES", 1)
    register_reader("mine", lambda head: False, lambda log, options, stats: iter(()))
    for name in "ab":
        write(tmp_path / "logs" / f"{name}.jsonl", session(name))
    with pytest.raises(TypeError, match=r"the reader 'mine' cannot be sent to other processes .* processes=1"):
        ingest(tmp_path / "logs", into=tmp_path / "out", processes=2)


def test_a_file_that_vanishes_after_it_was_found_fails_alone(tmp_path: Path) -> None:
    gone = write(tmp_path / "logs" / "gone.jsonl", session("a"))
    write(tmp_path / "logs" / "here.jsonl", session("b"))
    report = ingest(tmp_path / "logs", into=tmp_path / "out", on_start=lambda *_: gone.unlink())
    assert [Path(entry.source).name for entry in report.with_status("failed")] == ["gone.jsonl"]
    assert "FileNotFoundError" in (report.with_status("failed")[0].reason or "")
    assert len(list(load_traces(tmp_path / "out"))) == 1


def test_what_is_appended_while_a_run_goes_on_is_the_next_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(tmp_path / "s1.jsonl", session("a"))
    write_traces = TraceStore.write_traces

    def meanwhile(self: TraceStore, output: str, traces: Any) -> int:
        append(log, session("b"))
        return write_traces(self, output, traces)

    with monkeypatch.context() as patch:
        patch.setattr(TraceStore, "write_traces", meanwhile)
        assert ingest(log, into=tmp_path / "out").stats.n_states_emitted == 1
    assert ingest(log, into=tmp_path / "out").stats.n_states_emitted == 2


def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / "logs" / f"{name}.jsonl", session(name))
    done: list[int] = []

    def stop(size: int) -> None:
        done.append(size)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "logs", into=tmp_path / "out", on_progress=stop)
    assert len(list(load_traces(tmp_path / "out"))) == 2
    started: list[tuple[int, int]] = []
    report = ingest(tmp_path / "logs", into=tmp_path / "out", on_start=lambda *given: started.append(given))
    assert started == [(1, done[0])]
    assert (report.unchanged, report.stats.n_states_emitted) == (2, 3)


def test_a_full_disk_ends_the_run_and_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write(tmp_path / "logs" / f"{name}.jsonl", session(name))
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if "b.jsonl" in self.name:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OutputError, match="No space left on device"):
            ingest(tmp_path / "logs", into=tmp_path / "out")
    assert all(not name.startswith(".") for name in outputs(tmp_path / "out"))
    report = ingest(tmp_path / "logs", into=tmp_path / "out")
    assert report.stats.n_states_emitted == 2


def test_a_log_that_brings_its_process_down_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_ADDED", {})
    monkeypatch.setattr(workers, "_TASK_BYTES", 2000)  # several files in a task, several tasks
    register_reader("deadly", _sniff, _die)
    for name in ("a", "b", "c", "d", "e"):
        write(tmp_path / "logs" / f"{name}.jsonl", session(name))
    for name in ("x", "y"):
        write(tmp_path / "logs" / f"{name}.jsonl", [{"explosive": "x" * 1200}])
    report = ingest(tmp_path / "logs", into=tmp_path / "out", processes=2)
    reason = "the process that read it died (exit code -9); is there enough memory?"
    assert {Path(entry.source).stem: entry.reason for entry in report.with_status("failed")} == dict.fromkeys(
        "xy", reason
    )
    assert sorted(trace.source.file[0] for trace in load_traces(tmp_path / "out")) == ["a", "b", "c", "d", "e"]
    assert not active_children()


def test_a_script_that_cannot_be_imported_is_told_so(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / "logs" / f"{name}.jsonl", session(name))
    script = tmp_path / "script.py"
    script.write_text(
        "from composer_replication.ingestion import pipeline, workers\n"
        "workers._TASK_BYTES = 1\n"
        "pipeline.ingest_logs(['logs'], 'out', processes=2)\n"
    )
    result = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "a process that should read logs did not start (exit code 1): a script needs" in result.stderr


def test_a_stop_does_not_wait_for_what_is_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_ADDED", {})
    monkeypatch.setattr(workers, "_TASK_BYTES", 1)
    register_reader("lingering", _sniff, _linger)
    write(tmp_path / "logs" / "slow.jsonl", [{"explosive": 1}])
    write(tmp_path / "logs" / "quick.jsonl", session("a"))

    def stop(size: int) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "logs", into=tmp_path / "out", processes=2, on_progress=stop)
    assert time.monotonic() - started < 300
    assert not active_children()


def test_an_output_that_a_process_cannot_write_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_TASK_BYTES", 1)
    for name in "abc":
        write(tmp_path / "logs" / f"{name}.jsonl", session(name))
    out = tmp_path / "out"
    with pytest.raises(OutputError, match="No such file or directory"):
        ingest(tmp_path / "logs", into=out, processes=2, on_start=lambda *_: (out / "traces").rmdir())
    assert not active_children()


def test_a_process_in_a_long_log_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / "logs" / f"{name}.jsonl", [{"slow": 1}])
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\n"
        "def sniff(head):\n"
        "    return any('slow' in record for record in head.records)\n"
        "def read(log, options, stats):\n"
        "    pathlib.Path(f'{log.stem}.pid').write_text(str(os.getpid()))\n"
        "    time.sleep(900)\n"
    )
    (tmp_path / "script.py").write_text(
        "import slow\n"
        "from composer_replication.ingestion import formats, pipeline, workers\n"
        "if __name__ == '__main__':\n"
        "    workers._TASK_BYTES = 1\n"
        "    formats.register_reader('slow', slow.sniff, slow.read)\n"
        "    pipeline.ingest_logs(['logs'], 'out', processes=2)\n"
    )
    process = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, env=environment())
    files = [tmp_path / "a.pid", tmp_path / "b.pid"]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    process.kill()
    process.wait()
    wait_for(lambda: not any(_is_running(int(file.read_text())) for file in files))


def _is_running(process: int) -> bool:
    """A process that has ended may stay listed until somebody asks for its exit code."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")
