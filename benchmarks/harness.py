"""Benchmarks of losses: the time and memory of a forward and backward pass.

Every measurement is a process of its own, because an allocator keeps what an earlier contestant freed and reuses it
without the kernel noticing. Contestants take turns, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import torch
from reporting import (
    MEBIBYTE,
    BenchmarkError,
    judged,
    machine,
    main,
    medians,
    other_cpu_seconds,
    resident_bytes,
    take_turns,
)

Shape = TypeVar("Shape")  # a dataclass of sizes

# The file that resets the kernel's record of a process's peak memory.
_PEAK_RESET = Path("/proc/self/clear_refs")

PROFILE = {"action": "store_true", "help": "print where the time of our contestant goes, and stop"}
# What every run is measured by. "busy_elsewhere" is how many cores other processes kept busy during the timed run.
FIGURES = ("seconds", "peak_bytes", "busy_elsewhere")


@dataclass(frozen=True)
class Prepared:
    """One contestant with its inputs in memory.

    `run` does one forward and backward pass and gives its losses by name. `leaves` are the tensors whose `.grad` it
    fills, in named groups. The gradients of `excluded` exist only after a run, but do not count as its memory.
    """

    run: Callable[[], dict[str, float]]
    leaves: Mapping[str, Sequence[torch.Tensor]] = field(default_factory=dict)
    excluded: Sequence[torch.Tensor] = ()

    def clear_gradients(self) -> None:
        """Undo what a run leaves behind."""
        for tensors in self.leaves.values():
            for tensor in tensors:
                tensor.grad = None


@dataclass(frozen=True)
class Target:
    """An upper bound on a contestant's figure ("seconds" or "peak_bytes") divided by a peer's."""

    name: str
    figure: str
    contestant: str
    peer: str
    at_most: float


@dataclass(frozen=True)
class Benchmark(Generic[Shape]):
    """Contestants over one problem. `tolerances` has, by name, how far losses and gradient norms may differ."""

    name: str
    contestants: Sequence[str]
    prepare: Callable[[str, Shape], Prepared]
    full: Shape
    quick: Shape
    warm_up: Shape  # so small that what it leaves in the allocator does not matter
    tolerances: Mapping[str, float]
    targets: Sequence[Target]
    repeats: int = 3
    quick_repeats: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)

    def shape(self, quick: bool) -> Shape:
        """The problem's sizes."""
        return self.quick if quick else self.full


def run(benchmark: Benchmark[Any], profile: Callable[[Any], None] | None = None) -> NoReturn:
    """Run a benchmark's command line; with `profile`, it has the option --profile."""

    def report(arguments: argparse.Namespace) -> dict[str, Any] | None:
        if profile is not None and arguments.profile:
            profile(benchmark.shape(arguments.quick))
            return None
        return make_report(benchmark, arguments.quick, arguments.repeats)

    main(
        report,
        measure=lambda contestant, arguments: _measure(benchmark, contestant, benchmark.shape(arguments.quick)),
        options={"--profile": PROFILE} if profile is not None else {},
    )


def _measure(benchmark: Benchmark[Any], contestant: str, shape: Any) -> dict[str, float]:
    """In the child: memory on the first run of the full size, time on the second.

    The order matters: after a run the allocator may hold memory that the next one would get for free. The small run
    before both loads libraries and starts threads, which are no contestant's memory.
    """
    benchmark.prepare(contestant, benchmark.warm_up).run()
    prepared = benchmark.prepare(contestant, shape)
    figures, peak_bytes = _with_peak(prepared.run)
    for name, tensors in prepared.leaves.items():
        figures[name] = torch.stack([torch.linalg.vector_norm(t.grad) for t in tensors]).norm().item()
    prepared.clear_gradients()
    gc.collect()
    start, other_start = time.perf_counter(), other_cpu_seconds()
    prepared.run()
    seconds, other_seconds = time.perf_counter() - start, other_cpu_seconds() - other_start
    # Taken off even where the peak came before these gradients existed, which can only flatter whoever peaks early.
    gradient_bytes = sum(t.numel() * t.element_size() for t in prepared.excluded)
    measured = (seconds, peak_bytes - gradient_bytes, other_seconds / seconds)
    return dict(zip(FIGURES, measured, strict=True)) | figures


def _with_peak(function: Callable[[], dict[str, float]]) -> tuple[dict[str, float], int]:
    """Its result, and how far the resident memory rose above what it was before."""
    before = reset_peak()
    result = function()
    return result, resident_bytes("VmHWM") - before


def reset_peak() -> int:
    """Have the kernel measure the process's peak memory from here on, and give what is resident now."""
    if not _PEAK_RESET.exists():
        raise BenchmarkError(f"{_PEAK_RESET} is missing: peak memory is measured through it, which takes Linux")
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    _PEAK_RESET.write_text("5")
    before = resident_bytes("VmRSS")
    if resident_bytes("VmHWM") > before + 16 * MEBIBYTE:
        raise BenchmarkError(
            f"writing to {_PEAK_RESET} did not reset the peak: is this a sandbox without a real /proc?"
        )
    return before


def make_report(benchmark: Benchmark[Any], quick: bool, repeats: int | None) -> dict[str, Any]:
    """Let the contestants take turns, check that they agree, and put their figures together."""
    repeats = repeats or (benchmark.quick_repeats if quick else benchmark.repeats)
    options = ["--quick"] if quick else []
    rounds = [*benchmark.contestants] * repeats
    measured = take_turns(benchmark.name, rounds, options, benchmark.environment)
    for name, tolerance in benchmark.tolerances.items():
        _check_agreement(name, tolerance, measured)
    results = {
        contestant: medians(runs, *(name for name in runs[0] if name not in FIGURES))
        for contestant, runs in measured.items()
    }
    return {
        "benchmark": benchmark.name,
        "machine": {**machine("torch"), "threads": torch.get_num_threads()},
        "shape": asdict(benchmark.shape(quick)),
        "results": results,
        "targets": [_judged(target, results) for target in benchmark.targets],
    }


def _check_agreement(name: str, tolerance: float, measured: Mapping[str, list[dict[str, float]]]) -> None:
    values = {c: [run[name] for run in runs] for c, runs in measured.items() if name in runs[0]}
    first, *others = [value for of_contestant in values.values() for value in of_contestant]
    if not math.isfinite(first) or not all(abs(other - first) <= tolerance * abs(first) for other in others):
        raise BenchmarkError(f"{name} differs by more than {tolerance:g} of its size, or is not finite: {values}")


def _judged(target: Target, results: Mapping[str, Any]) -> dict[str, Any]:
    value = results[target.contestant][target.figure] / results[target.peer][target.figure]
    return judged(target.name, value, f"<={target.at_most:g}")
