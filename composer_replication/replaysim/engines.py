"""Running a recipe: in this process by the operators' batched interface (the default), or on data-juicer's own engines,
for large sets. The operators and the result are the same."""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import composer_replication
from composer_replication.replaysim.recipe import Recipe, no_installs, words_stripped_once
from composer_replication.replaysim.records import PairRecord

logger = logging.getLogger(__name__)

# The operators work on these; the histories are joined again by index.
COLUMNS = ("index", "state", "lesson", "chosen", "rejected")
# Data-juicer's batch; a part of this many records is also what Ray hands out.
_RECORDS_PER_PART = 1000
# No network: an operator whose model or package is not on the disk fails, and says so.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class OperatorError(RuntimeError):
    """An operator or its engine failed; the message says why."""


@dataclass(frozen=True)
class Drop:
    """A record that a step dropped: by its statistics, or because it equals an earlier one."""

    index: int
    position: int
    stats: Mapping[str, Any] | None = None
    same_as: int | None = None


@dataclass
class Outcome:
    """The remaining columns, and what was dropped; both in the order of the records.

    `columns` has the statistics of every filter, by its position, as `stats_<position>`.
    """

    columns: dict[str, list[Any]]
    drops: list[Drop]


def columns_of(records: Sequence[PairRecord]) -> dict[str, list[Any]]:
    """Return the records as the columns that operators work on."""
    return {name: [record[name] for record in records] for name in COLUMNS}  # type: ignore[literal-required]


def run_batched(operators: Sequence[Any], columns: dict[str, list[Any]]) -> Outcome:
    """Run the operators of `load_operators` one after another over all records.

    Raises:
        OperatorError: one failed.
    """
    ways = {"pair_filter": _filter, "pair_deduplicator": _find_duplicates, "pair_mapper": _map}
    drops: list[Drop] = []
    with no_installs(), words_stripped_once():
        for operator in operators:
            try:
                found = ways[operator._name](operator, columns)
            except RuntimeError as error:
                raise OperatorError(" ".join(str(error).split())) from error
            if found:
                drops += found
                gone = {drop.index for drop in found}
                keep = [index not in gone for index in columns["index"]]
                columns = {name: list(itertools.compress(values, keep)) for name, values in columns.items()}
    return Outcome(columns, sorted(drops, key=lambda drop: drop.index))


def _filter(operator: Any, columns: dict[str, list[Any]]) -> list[Drop]:
    stats: list[dict[str, Any]] = []
    keep: list[bool] = []
    for batch in _batches(operator, columns):
        measured = operator.measure(batch)
        keep += operator.judge(batch, measured)
        stats += measured
    columns[f"stats_{operator.position}"] = stats
    rows = zip(columns["index"], stats, keep, strict=True)
    return [Drop(index, operator.position, stats=one) for index, one, kept in rows if not kept]


def _find_duplicates(operator: Any, columns: dict[str, list[Any]]) -> list[Drop]:
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    hashes = [operator.hash_of(dict(zip(COLUMNS, row, strict=True))) for row in rows]
    same_as = operator.duplicates(columns["index"], hashes)
    return [Drop(index, operator.position, same_as=kept) for index, kept in same_as.items()]


def _map(operator: Any, columns: dict[str, list[Any]]) -> list[Drop]:
    made = [operator.process_batched(batch) for batch in _batches(operator, columns)]
    for name in ("chosen", "rejected"):
        columns[name] = [text for batch in made for text in batch[name]]
    return []


def _batches(operator: Any, columns: dict[str, list[Any]]) -> Iterator[dict[str, list[Any]]]:
    """Return the batches that data-juicer's own engines would make."""
    for start in range(0, len(columns["index"]), operator.batch_size):
        yield {name: columns[name][start : start + operator.batch_size] for name in COLUMNS}


def run_engine(
    executor: str,
    recipe: Recipe,
    operators: Sequence[Any],
    columns: dict[str, list[Any]],
    *,
    processes: int | None = None,
    work_dir: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Run a recipe on "data-juicer" (its DefaultExecutor) or on "ray", in a process of its own.

    Args:
        processes: number of processes; one per core by default. A Ray cluster in `RAY_ADDRESS` decides by itself.
        work_dir: parent of the temporary folder of the run; a Ray cluster must see it on all nodes.

    Raises:
        OperatorError: the engine failed.
    """
    if work_dir is not None:
        Path(work_dir).mkdir(parents=True, exist_ok=True)
    # The path of a socket may have no more than a hundred characters.
    short = "/tmp" if os.access("/tmp", os.W_OK) else None
    temporary = partial(tempfile.TemporaryDirectory, prefix="pairs-", ignore_cleanup_errors=True)
    with temporary(dir=work_dir) as name, temporary(dir=short) as sockets:
        folder = Path(name).resolve()
        _write_records(columns, folder / "records")
        (folder / "notes").mkdir()
        job = {
            "executor": executor,
            "processes": processes or os.cpu_count() or 1,
            "sockets": sockets,
            "steps": [(operator._name, asdict(step)) for operator, step in zip(operators, recipe.steps, strict=True)],
        }
        (folder / "job.json").write_text(json.dumps(job))
        _run_process(executor, folder, Path(sockets))
        return Outcome(_read_result(folder, columns), _read_notes(folder / "notes"))


def _run_process(executor: str, folder: Path, sockets: Path) -> None:
    environment = {
        **os.environ,
        **_OFFLINE,
        "TMPDIR": str(sockets),
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(Path(composer_replication.__file__).parent.parent), *_given_path()]),
    }
    if executor == "ray":
        environment["RAY_JOB"] = "1"  # how data-juicer's operators know, in the workers too
        if not environment.get("RAY_ADDRESS"):
            environment |= _own_cluster(sockets)
    log = folder / "log.txt"
    command = [sys.executable, "-m", "composer_replication.replaysim.engine_process", str(folder / "job.json")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            # Also what a stopped run left: workers are in the process's group, and Ray's servers end with it.
            _kill_group(process)
    logger.debug("%s: %s", executor, log.read_text(errors="replace"))
    if code != 0:
        raise OperatorError(f"executor {executor!r} failed: {_reason(folder, code)}")


def _own_cluster(folder: Path) -> dict[str, str]:
    """Return the environment of a Ray cluster that listens on this machine alone, with a token that is not in the home
    folder."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex())
    # By this name: on these two systems it stays on 127.0.0.1 by itself, for the sake of their firewalls.
    local = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return {**local, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _reason(folder: Path, code: int) -> str:
    error = folder / "error.txt"
    if error.exists():
        return error.read_text(encoding="utf-8")
    lines = (folder / "log.txt").read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
    return f"exit code {code}: {last}"


def _given_path() -> list[str]:
    return [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]  # noqa: PTH100


def _write_records(columns: dict[str, list[Any]], folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    types = {name: pyarrow.int64() if name == "index" else pyarrow.string() for name in columns}
    for start in range(0, len(columns["index"]), _RECORDS_PER_PART):
        part = {name: values[start : start + _RECORDS_PER_PART] for name, values in columns.items()}
        table = pyarrow.table(part, schema=pyarrow.schema(types))
        pyarrow.parquet.write_table(table, folder / f"{start:012d}.parquet")


def _read_result(folder: Path, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    import pyarrow.parquet

    path = folder / "result.parquet"
    if not path.exists():  # an engine with nothing left has no types for it either
        return {name: [] for name in columns}
    result: dict[str, list[Any]] = pyarrow.parquet.read_table(path).sort_by("index").to_pydict()
    return {
        name: [json.loads(value) for value in values] if name.startswith("stats_") else values
        for name, values in result.items()
    }


def _read_notes(folder: Path) -> list[Drop]:
    drops = {}
    for path in folder.iterdir():
        position = int(path.name.partition("-")[0])
        for line in path.read_text(encoding="ascii").splitlines():
            drop = Drop(position=position, **json.loads(line))
            drops[drop.index] = drop
    return [drops[index] for index in sorted(drops)]
