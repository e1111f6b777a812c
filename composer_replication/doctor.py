"""A report on this machine and environment: versions, working extras, cores, memory, accelerator."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from composer_replication import __version__
from composer_replication._optional import (
    DISTRIBUTION,
    EXTRAS,
    MissingExtraError,
    install_command,
    is_available,
    require_all,
)
from composer_replication.envs.sandbox import bubblewrap_problem
from composer_replication.pretrained import READY_MODELS, ReadyModel

_PROBE_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class PackageState:
    """A required package: the installed version (None if missing) and whether it meets the requirement."""

    name: str
    required: str
    installed: str | None
    fits: bool


@dataclass(frozen=True)
class ExtraState:
    """An extra: `works` if its packages are installed and its modules import; `problem` says why not."""

    name: str
    purpose: str
    works: bool
    problem: str
    install: str
    note: str
    packages: list[PackageState] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """The whole report."""

    version: str
    python: str
    platform: str
    cores: int
    memory_gib: float
    accelerator: str
    bfloat16: str
    models: dict[str, str]
    sandbox: str
    core: list[PackageState]
    extras: list[ExtraState]

    @property
    def healthy(self) -> bool:
        """Whether the core can be used; extras are optional."""
        return all(package.fits for package in self.core)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**asdict(self), "healthy": self.healthy}


def diagnose(*, imports: bool = True) -> Diagnosis:
    """Examine the environment. With `imports`, every extra's modules are imported, in processes of their own."""
    requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    core = [_package_state(r) for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    with ThreadPoolExecutor(max_workers=2) as pool:
        bfloat16 = pool.submit(bfloat16_problem)
        extras = list(pool.map(lambda name: _extra_state(name, requirements, imports), EXTRAS))
    return Diagnosis(
        version=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cores=usable_cores(),
        memory_gib=round(usable_memory() / 2**30, 1),
        accelerator=accelerator(),
        bfloat16=bfloat16.result() or "works",
        models={name: _model_state(model) for name, model in READY_MODELS.items()},
        sandbox=bubblewrap_problem() or "works",
        core=core,
        extras=extras,
    )


def usable_cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory() -> int:
    """Return the bytes of memory: the machine's, or the container's limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        text = limit.read_text().strip() if limit.is_file() else ""
        if text.isdigit():
            total = min(total, int(text))
    return total


def accelerator() -> str:
    """Return the accelerator that torch would use, or "none"."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return f"cuda: {', '.join(names)}"
    if torch.backends.mps.is_available():
        return "mps"
    return "none"


def bfloat16_problem() -> str:
    """Return what is wrong with bfloat16 matrix products on this CPU; empty if they work.

    Some virtual machines announce AMX and then kill the process that uses it, so it is tried in another process.
    """
    run = _python("import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a")
    if run is None or run.returncode >= 0:
        return "" if run is not None and run.returncode == 0 else f"fails: {_last_line(run)}"
    return (
        f"kills the process (signal {-run.returncode}): set ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment, "
        "or train in float32"
    )


def _package_state(requirement: Requirement) -> PackageState:
    try:
        installed: str | None = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        installed = None
    fits = installed is not None and requirement.specifier.contains(installed, prereleases=True)
    return PackageState(requirement.name, str(requirement.specifier), installed, fits)


def _extra_state(name: str, requirements: list[Requirement], imports: bool) -> ExtraState:
    extra = EXTRAS[name]
    packages = [_package_state(requirement) for requirement in _requirements_of(name, requirements)]
    missing = [package.name for package in packages if package.installed is None]
    unfit = [
        f"{package.name} {package.installed} (wanted {package.required})"
        for package in packages
        if package.installed is not None and not package.fits
    ]
    absent = [module for module in extra.modules if not is_available(module)]
    if missing:
        problem = f"not installed: {', '.join(missing)}"
    elif unfit:
        problem = f"other version: {', '.join(unfit)}"
    elif absent:
        problem = f"not installed: {', '.join(absent)}"
    else:
        problem = _import_problem(extra.modules) if imports else ""
    return ExtraState(name, extra.purpose, not problem, problem, install_command(name), extra.note, packages)


def _model_state(model: ReadyModel) -> str:
    try:
        require_all(model.needs)
    except MissingExtraError as error:
        return str(error)
    return "ready"


def _requirements_of(extra: str, requirements: list[Requirement]) -> Iterator[Requirement]:
    """Yield the packages of an extra, with those of the extras that it includes."""
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == DISTRIBUTION:
            for included in sorted(requirement.extras):
                yield from _requirements_of(included, requirements)
        else:
            yield requirement


def _import_problem(modules: tuple[str, ...]) -> str:
    """Import modules in a process of their own: some take seconds, change global state, or crash."""
    run = _python(f"import {', '.join(modules)}")
    return "" if run is not None and run.returncode == 0 else f"import fails: {_last_line(run)}"


def _python(code: str) -> subprocess.CompletedProcess[str] | None:
    """Run code in a fresh interpreter; None if it takes too long."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None


def _last_line(run: subprocess.CompletedProcess[str] | None) -> str:
    if run is None:
        return f"no answer within {_PROBE_TIMEOUT_S:g} s"
    return (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
