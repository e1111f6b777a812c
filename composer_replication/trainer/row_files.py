"""Rows of JSONL and Parquet files, with their numbers for error messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication._optional import require


def parquet_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a Parquet file with their numbers, from 1.

    Raises:
        ValueError: it is not a Parquet file.
    """
    parquet = require("pyarrow.parquet", "train")
    try:
        reader = parquet.ParquetFile(file)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is not a Parquet file: {' '.join(str(error).split())}") from None
    number = 0
    for batch in reader.iter_batches(1_000):
        for row in batch.to_pylist():
            number += 1
            yield number, row


def json_lines(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSONL file with the numbers of their lines, from 1; empty lines are passed over.

    Raises:
        ValueError: a line is no JSON object.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: no JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{file}, line {number}: no object, but a {type(row).__name__}")
            yield number, row
