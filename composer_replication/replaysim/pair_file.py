"""A file of pairs to a file of normalised pairs, with a summary beside it that tells a second run that it is done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import composer_replication
from composer_replication.replaysim.normalizer import DJNormalizer, Executor
from composer_replication.replaysim.recipe import load_recipe
from composer_replication.replaysim.records import NormalizedDPOPair, check_pair


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
    force: bool = False,
) -> NormalizedFile:
    """Normalise a JSONL file of pairs into a JSONL file of `NormalizedDPOPair` rows.

    The output appears whole or not at all. `OUTPUT.summary.json` holds the report, and digests of the input, the
    recipe and the output: as long as they fit, nothing is done again, unless `force` is set.

    Raises:
        FileNotFoundError: there is no such file of pairs, or no such recipe.
        ValueError: a line is no pair; names the file and the line. Or see `DJNormalizer`.
        OSError: the output cannot be written.
    """
    source, output = Path(source), Path(output)
    if output.suffix != ".jsonl":
        raise ValueError(f"{output}: normalised pairs are written as .jsonl")
    if not source.is_file():
        raise FileNotFoundError(f"{source}: there is no such file of pairs")
    if output.exists() and output.samefile(source):
        raise ValueError(f"{output}: this is the input; give another file")
    made_by = _made_by(recipe, executor, skip_dj)
    summary_path = output.with_name(output.name + ".summary.json")
    if not force:
        summary = _read_summary(summary_path)
        if summary is not None and summary["made_by"] == made_by and _is_unchanged(summary, source, output):
            return NormalizedFile(summary["report"], up_to_date=True)
    normalizer = DJNormalizer(recipe, executor=executor, skip_dj=skip_dj, processes=processes)
    with _writing(output) as write:
        input_hash, output_hash = hashlib.sha256(), hashlib.sha256()
        pairs = normalizer.normalize(read_pairs(source, input_hash))
        assert normalizer.report is not None
        report = normalizer.report.as_dict()
        if not report["pairs_in"]:
            raise ValueError(f"{source}: there is no pair in it")
        write(_lines(pairs, output_hash))
    digests = {"input_sha256": input_hash.hexdigest(), "output_sha256": output_hash.hexdigest()}
    with _writing(summary_path) as write:
        write([json.dumps({"made_by": made_by, **digests, "report": report}, indent=2).encode() + b"\n"])
    return NormalizedFile(report, up_to_date=False)


def read_pairs(path: Path, digest: Any) -> Iterator[dict[str, Any]]:
    """The pairs of a JSONL file; its bytes go to `digest`.

    Raises:
        ValueError: a line is no JSON, or no pair; names the file and the line.
    """
    with path.open("rb", buffering=1 << 20) as file:
        for number, line in enumerate(file, 1):
            digest.update(line)
            if not line.strip():
                continue
            try:
                pair = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number} is no JSON: {error}") from None
            check_pair(pair, f"{path}, line {number}")
            yield pair


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
    keys = ("made_by", "input_sha256", "output_sha256", "report")
    return summary if isinstance(summary, dict) and all(key in summary for key in keys) else None


def _is_unchanged(summary: dict[str, Any], source: Path, output: Path) -> bool:
    if not output.is_file():
        return False
    return all(_sha256(path) == summary[key] for path, key in ((source, "input_sha256"), (output, "output_sha256")))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _lines(pairs: Iterable[NormalizedDPOPair], digest: Any) -> Iterator[bytes]:
    for pair in pairs:
        try:
            line = json.dumps(vars(pair), ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # half a character, from a log; JSON can write it as an escape
            line = json.dumps(vars(pair)).encode() + b"\n"
        digest.update(line)
        yield line


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
