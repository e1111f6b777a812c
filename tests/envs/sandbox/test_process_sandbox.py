"""The weak sandbox: announced, had by name alone, and as tidy as it can be."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from confined import PATIENT, new_mark, processes_with, run_marked, run_python
from processes import wait_for

from composer_replication.envs.sandbox import ProcessSandbox, make_sandbox


def test_it_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), make_sandbox("process", PATIENT) as sandbox:
        assert isinstance(sandbox, ProcessSandbox)
    (record,) = caplog.records
    assert record.getMessage() == (
        "ProcessSandbox does not confine: code runs with your rights, your files and your network"
    )
    with make_sandbox() as sandbox:
        assert not isinstance(sandbox, ProcessSandbox)


def test_no_environment_and_no_group_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_SECRET", "secret")
    mark = new_mark()
    with ProcessSandbox(PATIENT) as sandbox:
        result = run_marked(
            sandbox,
            mark,
            "import os, time\n"
            "if os.fork() == 0:\n    time.sleep(1000)\n"
            "print('PLANTED_SECRET' in os.environ, os.getcwd())\n",
        )
    assert result.stdout.startswith("False ")
    wait_for(lambda: processes_with(mark) == [])  # it is killed, and somebody else's child
    assert not Path(result.stdout.split()[1]).exists()


def test_limits_of_each_process() -> None:
    with ProcessSandbox(PATIENT) as sandbox:
        result = run_python(sandbox, "import time\ntime.sleep(1000)", limits=replace(PATIENT, wall_seconds=0.1))
        assert (result.exit_code, result.killed_by) == (-9, "wall_seconds")
        assert sandbox.run(["yes"], limits=replace(PATIENT, output_bytes=10)).killed_by == "output_bytes"
        result = run_python(sandbox, "bytearray(2**30)", limits=replace(PATIENT, memory_bytes=2**28))
        assert result.stderr.endswith("MemoryError\n")
