"""A file of pairs to a file of normalised pairs, with a summary beside it that tells a second run that it is done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import composer_replication
from composer_replication.replaysim.normalizer import DJNormalizer, Executor
from composer_replication.replaysim.recipe import load_recipe
from composer_replication.replaysim.records import to_pair
from composer_replication.teacher_replay.compact_pairs import compact_lines, encoded, is_compact
from composer_replication.teacher_replay.pair_files import save_preference, stored_pairs


@dataclass
class NormalizedFile:
    """What was made: the report of `DJNormalizer` as JSON has it, and whether it was already there."""

    report: dict[str, Any]
    up_to_date: bool


def normalize_file(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    recipe: str | os.PathLike[str] | None = None,
    executor: Executor = "batched",
    skip_dj: bool = False,
    processes: int | None = None,
    preference: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> NormalizedFile:
    """Normalise a JSONL file of pairs into a JSONL file of `NormalizedDPOPair` rows.

    The output is in the form of the input: with every message once (see `compact_pairs`), or with whole rows. Memory
    holds the pairs' actions, not their histories. Files appear whole or not at all. `OUTPUT.summary.json` holds the
    report, and digests of the input, the recipe and what was written: as long as they fit, nothing is done again,
    unless `force` is set.

    Args:
        preference: where to write the pairs in TRL's preference format as well: .jsonl or .parquet.

    Raises:
        FileNotFoundError: there is no such file of pairs, or no such recipe.
        ValueError: a line is no pair (names it), or the file changed while it was read; or see `DJNormalizer`.
        OSError: the output cannot be written.
    """
    source, outputs = Path(source), [Path(output), *([Path(preference)] if preference is not None else [])]
    _check_paths(source, outputs)
    summary_path = outputs[0].with_name(outputs[0].name + ".summary.json")
    made_by = {**_made_by(recipe, executor, skip_dj), "input_sha256": _sha256(source)}
    if not force:
        summary = _read_summary(summary_path)
        if summary is not None and summary["made_by"] == made_by and _are_unchanged(summary["outputs"], outputs):
            return NormalizedFile(summary["report"], up_to_date=True)
    normalizer = DJNormalizer(recipe, executor=executor, skip_dj=skip_dj, processes=processes)
    with _writing(outputs[0]) as write:
        kept = normalizer.kept(lambda: stored_pairs(source))
        assert normalizer.report is not None
        report = normalizer.report.as_dict()
        if not report["pairs_in"]:
            raise ValueError(f"{source}: there is no pair in it")
        rows = map(vars, kept)
        write(compact_lines(rows) if is_compact(source) else (encoded(row) + b"\n" for row in rows))
        if _sha256(source) != made_by["input_sha256"]:
            # It is read twice, and what the operators judged would be joined to other pairs.
            raise ValueError(f"{source}: it changed while it was read; run this again")
    if preference is not None:
        save_preference(map(to_pair, kept), preference)
    digests = [_sha256(path) for path in outputs]
    with _writing(summary_path) as write:
        write([json.dumps({"made_by": made_by, "outputs": digests, "report": report}, indent=2).encode() + b"\n"])
    return NormalizedFile(report, up_to_date=False)


def _check_paths(source: Path, outputs: Sequence[Path]) -> None:
    if not source.is_file():
        raise FileNotFoundError(f"{source}: there is no such file of pairs")
    for path, endings in zip(outputs, ((".jsonl",), (".jsonl", ".parquet")), strict=False):
        if path.suffix not in endings:
            raise ValueError(f"{path}: this is written as {' or '.join(endings)}")
        if path.exists() and path.samefile(source):
            raise ValueError(f"{path}: this is the input; give another file")
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise ValueError(f"{outputs[0]}: this is given for both outputs")


def _made_by(recipe: str | os.PathLike[str] | None, executor: str, skip_dj: bool) -> dict[str, Any]:
    """What the output depends on besides the input."""
    try:
        data_juicer = None if skip_dj else version("py-data-juicer")
    except PackageNotFoundError:  # the normaliser says which extra is missing
        data_juicer = None
    return {
        "composer-replication": composer_replication.__version__,
        "py-data-juicer": data_juicer,
        "recipe_sha256": None if skip_dj else load_recipe(recipe or DJNormalizer.DEFAULT_RECIPE).sha256,
        "executor": None if skip_dj else executor,
    }


def _read_summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    kinds = {"made_by": dict, "outputs": list, "report": dict}
    whole = isinstance(summary, dict) and all(isinstance(summary.get(key), kind) for key, kind in kinds.items())
    return summary if whole else None


def _are_unchanged(digests: list[str], outputs: Sequence[Path]) -> bool:
    """Whether what is asked for is there as it was written; a run may have written one output more."""
    known = zip(outputs, digests, strict=False)
    return len(outputs) <= len(digests) and all(path.is_file() and _sha256(path) == digest for path, digest in known)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _writing(path: Path) -> Iterator[Callable[[Iterable[bytes]], None]]:
    """Hand out what writes the file; it is in its place when the block ends, or not at all.

    That it can be written is known before the work begins, not after.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = temporary.open("wb", buffering=1 << 18)
        except OSError as error:
            raise _unwritable(path, error) from error
        with file:

            def write(lines: Iterable[bytes]) -> None:
                try:
                    file.writelines(lines)
                    file.flush()
                except OSError as error:
                    raise _unwritable(path, error) from error

            yield write
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _unwritable(path: Path, error: OSError) -> OSError:
    return OSError(f"{path}: {error.strerror}; the pairs need a place that can be written")
