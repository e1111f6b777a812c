"""The run directory: what was configured, where it ran, what the model said, and where to go on.

DIR/config.yaml        the resolved configuration
DIR/environment.json   versions, hardware, seed, git commit
DIR/metrics.jsonl      written by the trainer
DIR/samples.jsonl      a few rollouts per entry
DIR/checkpoint-N/
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication._files import whole_file
from composer_replication.run.configuration import Config, launched_processes
from composer_replication.run.loading import ConfigError, load_config
from composer_replication.trainer.checkpoint import last_complete_checkpoint
from composer_replication.trainer.model_card import package_versions

# Settings that may change on resuming: they affect how long a run is or what it reports, not what is learned.
_FREE = frozenset(
    {
        "preset",  # the values that it stands for are compared
        "training.output_dir",  # it is this directory, however it is written
        "training.save_every",
        "training.keep_checkpoints",
        "training.log_every",
        "training.samples_per_log",
        "training.inactive_patience",
        "training.gradient_share_every",
        "training.report_to",
        "training.resume",
        *(
            f"diloco.{name}"
            for name in (
                "min_replicas",
                "lighthouse",
                "hostname",
                "store",
                "run_id",
                "timeout_s",
                "grace_s",
                "poll_interval_s",
            )
        ),
    }
)


class RunDirectory:
    """A directory that holds one run."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.config_file = self.folder / "config.yaml"
        self.samples_file = self.folder / "samples.jsonl"

    def checkpoint(self, config: Config) -> Path | None:
        """The checkpoint to resume from; None: start at the beginning.

        Raises:
            ValueError: the directory holds another run, or one that must not be resumed; or no such checkpoint.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"training.output_dir: {self.folder} is a file; give a directory")
        resume = config.training.resume
        if resume not in ("auto", "never"):
            given = Path(resume).expanduser()
            if not (given / "trainer_state.json").is_file():
                raise ValueError(f"training.resume: {resume} is not a checkpoint: it has no trainer_state.json")
            later = last_complete_checkpoint(self.folder, processes=launched_processes())
            if later is not None and step_of(later) > step_of(given):
                raise ValueError(
                    f"training.output_dir: {self.folder} already has {later.name}; to branch off at {resume}, give "
                    "another directory"
                )
            self._compare(given.parent / "config.yaml", config, "training.resume")
            return given
        checkpoint = last_complete_checkpoint(self.folder, processes=launched_processes())
        if resume == "never":
            if self.config_file.exists() or checkpoint is not None:
                raise ValueError(
                    f"training.output_dir: {self.folder} holds a run; give another directory, or training.resume: auto"
                )
            return None
        if not self.config_file.exists():
            if checkpoint is not None:
                raise ValueError(
                    f"training.output_dir: {self.folder} holds checkpoints but no config.yaml; "
                    "give another directory, or name the checkpoint in training.resume"
                )
            return None
        self._compare(self.config_file, config, "training.output_dir" if checkpoint is not None else None)
        return checkpoint

    def _compare(self, file: Path, config: Config, key: str | None) -> None:
        """Require a readable configuration in `file` and, with a `key` for the error, the same settings as this one."""
        if not file.exists():
            return
        try:
            earlier = load_config(file)
        except ConfigError as error:
            raise ValueError(
                f"{error}; the run in {file.parent} was of another version: give another directory"
            ) from None
        difference = first_difference(earlier, config) if key is not None else None
        if difference is not None:
            raise ValueError(
                f"{key}: {file.parent} holds a run with another configuration: {difference}; give another directory, "
                "or the same configuration"
            )

    def make(self) -> None:
        """Make the directory, with its parents.

        Raises:
            ValueError: it cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"training.output_dir: {self.folder} cannot be made: {error.strerror}") from None

    def begin(self, config: Config, resumed_from: int) -> None:
        """Write configuration and environment of a run that starts after a step, and drop the samples after it.

        Raises:
            OSError: the directory cannot be written.
        """
        with whole_file(self.config_file, "runs") as temporary:
            temporary.write_text(config.to_yaml(), encoding="utf-8")
        with whole_file(self.folder / "environment.json", "runs") as temporary:
            temporary.write_text(json.dumps(environment(config), indent=2) + "\n", encoding="utf-8")
        self._keep_samples(resumed_from)

    def add_samples(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Append samples to samples.jsonl."""
        with self.samples_file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(sample, default=str) + "\n" for sample in samples)

    def _keep_samples(self, last_step: int) -> None:
        if not self.samples_file.exists():
            return
        kept = []
        for line in self.samples_file.read_text(encoding="utf-8").splitlines():
            try:
                sample = json.loads(line)
            except ValueError:  # cut by a crash
                continue
            if sample.get("step", 0) <= last_step:
                kept.append(line + "\n")
        with whole_file(self.samples_file, "runs") as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])


def first_difference(earlier: Config, config: Config) -> str | None:
    """The first setting in which two configurations differ, with both values, leaving out those that are free to."""
    free = _FREE if _depends_on_steps(config) else _FREE | {"training.steps"}
    for key, before, after in _differences(earlier.as_dict(), config.as_dict()):
        if key not in free:
            return f"{key} was {json.dumps(before)} and is {json.dumps(after)}"
    return None


def environment(config: Config) -> dict[str, Any]:
    """Versions, hardware and seed that a run's results depend on; none of it is secret."""
    import torch

    cuda = torch.cuda.is_available()
    packages = package_versions()
    return {
        "composer_replication": packages.pop("composer_replication"),
        "python": platform.python_version(),
        "packages": packages,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if cuda
        else [],
        "cuda": torch.version.cuda if cuda else None,
        "git_commit_here": _git_commit(),  # of the folder that the run was started in
        "seed": config.training.seed,
    }


def _depends_on_steps(config: Config) -> bool:
    """Whether the number of steps shapes what is learned at each of them."""
    optimizer = config.optimizer
    return optimizer.schedule != "constant" or 0 < optimizer.warmup < 1 or config.channels.sdpo.wrapper == "taid"


def _differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys, with their dotted paths, whose values are not the same."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        if before != after:
            yield key, before, after
        return
    for name in dict.fromkeys([*before, *after]):
        yield from _differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)


def _git_commit() -> str | None:
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None
