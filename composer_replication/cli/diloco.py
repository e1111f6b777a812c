"""`composer-replication diloco run`: several replicas of a training run on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from composer_replication.cli.pairs import AsJson
from composer_replication.cli.train import Overrides, show_problems

if TYPE_CHECKING:
    from composer_replication.config import Config
    from composer_replication.diloco.settings import DilocoSection
    from composer_replication.diloco.supervisor import Supervisor

_INTERRUPTED = 130
_LOOK_S = 0.2


def run_replicas(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, as `train` takes it.")],
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Number of replicas (default: diloco.replicas).")
    ] = None,
    overrides: Overrides = None,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, help="Maximum restarts of each replica that dies.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Train one model by several replicas on this machine, which synchronise every diloco.sync_every steps (DiLoCo).

    Starts a lighthouse (or, with diloco.backend: store, uses a folder) and a `train` process for each replica, with
    OUTPUT_DIR/replica-R as its run directory and replica.log in it. Each trains on its own part of the data. One that
    dies is started again and takes over the others' state. The same command again resumes. Ctrl-C ends all of them,
    with a checkpoint where the step under way can end.

    A terminal shows a table (round, loss, participants, bytes, seconds waited); elsewhere every round is a line on
    standard error. At the end the shared parameters are in each replica's last checkpoint.

    Exit code 1: a replica failed, or replicas differ. Exit code 2: the configuration is invalid.
    """
    from composer_replication.config import ConfigError, load_config

    given = list(overrides or ())
    if replicas is not None:
        given.append(f"diloco.replicas={replicas}")
    try:
        loaded = load_config(config, given)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    except ConfigError as error:
        show_problems(error)
        raise typer.Exit(2) from None
    if loaded.diloco is None:
        raise typer.BadParameter(f"{config} has no section diloco: give --replicas N")
    errors = Console(stderr=True, highlight=False, emoji=False)
    with ExitStack() as stack:
        arguments, environment = [str(config)], _devices(loaded)
        if loaded.diloco.backend == "store":
            given += _store_overrides(loaded, stack)
        elif loaded.diloco.lighthouse is None:
            environment["TORCHFT_LIGHTHOUSE"] = stack.enter_context(_lighthouse(loaded.diloco))
        for override in given:
            arguments += ["--set", override]
        from composer_replication.diloco.supervisor import Supervisor

        stack.enter_context(_terminating())
        supervisor = stack.enter_context(
            Supervisor(
                arguments,
                loaded.training.output_dir,
                loaded.diloco.replicas,
                wanted=loaded.diloco.wanted,
                ends_apart=loaded.diloco.averaging == "decoupled",
                max_restarts=max_restarts,
                environment=environment,
            )
        )
        interrupted = _watch(supervisor, errors, shown=not as_json)
    summary = {"output_dir": str(loaded.training.output_dir), "interrupted": interrupted, **supervisor.summary()}
    checkpoints = [_last_checkpoint(one.folder) for one in supervisor.replicas]
    for figures, checkpoint in zip(summary["replicas"], checkpoints, strict=True):
        figures["checkpoint"] = None if checkpoint is None else str(checkpoint)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _show(Console(emoji=False, highlight=False), supervisor, summary)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if not supervisor.is_good:
        raise typer.Exit(1)


def _devices(config: Config) -> dict[str, str]:
    """The variable that lists the CUDA devices, if there are any to use."""
    assert config.diloco is not None
    if config.training.device == "cpu":
        return {}
    import torch

    from composer_replication.diloco.devices import VISIBLE_DEVICES, visible_devices

    found = visible_devices(torch.cuda.device_count(), os.environ)
    if config.diloco.backend == "torchft" and 0 < len(found) < config.diloco.replicas:
        raise typer.BadParameter(
            f"diloco.replicas: {config.diloco.replicas} replicas need a CUDA device each with backend torchft (NCCL), "
            f"and there are {len(found)}: use fewer replicas, training.device=cpu or diloco.backend=store"
        )
    return {VISIBLE_DEVICES: ",".join(found)} if found else {}


def _store_overrides(config: Config, stack: ExitStack) -> list[str]:
    """A folder to meet in if none is given, and a name for this start; what is left there is deleted at the end."""
    assert config.diloco is not None
    made, run_id = [], f"run-{uuid.uuid4().hex[:12]}"
    if config.diloco.run_id is None:
        made.append(f"diloco.run_id={run_id}")
    if config.diloco.store is None:
        folder = (config.training.output_dir / "store").resolve()
        made.append(f"diloco.store={json.dumps(str(folder))}")
        # No later start has this name.
        stack.callback(shutil.rmtree, folder / run_id, ignore_errors=True)
    return made


@contextmanager
def _lighthouse(settings: DilocoSection) -> Iterator[str]:
    from composer_replication._optional import MissingExtraError, is_available

    if not is_available("torchft"):
        raise MissingExtraError("diloco", "torchft")
    os.environ.setdefault("RUST_LOG", "error")
    from composer_replication.diloco.torchft_replica import Lighthouse

    # A slow replica is waited for as long as the others wait for a quorum; a dead one is noticed by its silence.
    with Lighthouse(settings.wanted, join_timeout_s=settings.timeout_s) as lighthouse:
        yield lighthouse.address


@contextmanager
def _terminating() -> Iterator[None]:
    """SIGTERM, and the end of the terminal, as Ctrl-C, so that no replica is left behind."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        for one in (signal.SIGTERM, signal.SIGHUP):
            # Under nohup, SIGHUP is ignored, and stays so.
            if signal.getsignal(one) != signal.SIG_IGN:
                before[one] = signal.signal(one, interrupted)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _watch(supervisor: Supervisor, errors: Console, *, shown: bool) -> bool:
    """Look after the replicas until all have ended; whether Ctrl-C ended them."""
    seen = {one.rank: 0 for one in supervisor.replicas}
    live = Live(console=errors, auto_refresh=False, transient=True) if shown and errors.is_terminal else None
    try:
        with live or ExitStack():
            while not supervisor.is_over:
                supervisor.look()
                while supervisor.messages:
                    errors.print(supervisor.messages.pop(0), markup=False, soft_wrap=True)
                if live is not None:
                    live.update(_table(supervisor.summary()), refresh=True)
                elif shown:
                    for one in supervisor.replicas:
                        for line in one.rounds[seen[one.rank] :]:
                            errors.print(_line(one.rank, line), markup=False, soft_wrap=True)
                        seen[one.rank] = len(one.rounds)
                if not supervisor.is_over:
                    time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        errors.print("stopping the replicas (Ctrl-C again kills them)")
        supervisor.stop()
        return True
    return False


def _line(rank: int, line: dict[str, Any]) -> str:
    parts = [f"replica {rank}", f"round {line['round']}", f"step {line['step']:,}"]
    if line["loss"] is not None:
        parts.append(f"loss {line['loss']:.4f}")
    parts += [f"{line['participants']} replicas", f"{line['bytes_up']:,} bytes up, {line['bytes_down']:,} down"]
    parts.append(f"waited {line['seconds_waited']:.1f} s")
    if line["healed"]:
        parts.append("healed")
    if not line["committed"]:
        parts.append("not committed")
    return " | ".join(parts)


def _table(summary: dict[str, Any]) -> Table:
    # For a terminal of 80 columns: short headings, and one space between columns.
    table = Table("rank", "state", box=SIMPLE_HEAD, padding=0)
    for heading in ("rounds", "step", "loss", "with", "MB up", "MB down", "wait, s", "restarts"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in summary["replicas"]:
        table.add_row(
            str(one["rank"]),
            one["state"],
            f"{one['rounds']:,}",
            f"{one['step']:,}",
            "" if one["loss"] is None else f"{one['loss']:.4f}",
            "" if one["participants"] is None else str(one["participants"]),
            _megabytes(one["bytes_up"]),
            _megabytes(one["bytes_down"]),
            f"{one['seconds_waited']:,.1f}",
            str(one["restarts"]),
        )
    return table


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.{2 if count < 100e6 else 0}f}"


def _show(console: Console, supervisor: Supervisor, summary: dict[str, Any]) -> None:
    console.print(_table(summary))
    if summary["rounds"]:
        said = "the same" if supervisor.is_identical else "NOT the same"
        console.print(f"after every round, the shared parameters were {said} in all replicas")
    furthest = max(summary["replicas"], key=lambda one: (one["state"] == "done", one["rounds"]))
    if furthest["checkpoint"] is not None:
        console.print(f"model: {escape(furthest['checkpoint'])}", soft_wrap=True)


def _last_checkpoint(folder: Path) -> Path | None:
    from composer_replication.trainer.checkpoint import last_complete_checkpoint

    return last_complete_checkpoint(folder)


diloco = typer.Typer(
    name="diloco", help="Train by several replicas that synchronise now and then.", no_args_is_help=True
)
