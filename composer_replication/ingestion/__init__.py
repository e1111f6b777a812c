"""From agent logs to traces: one reader per log format, found by content; redaction; statistics."""

from typing import TYPE_CHECKING

from composer_replication._optional import lazy_exports

if TYPE_CHECKING:
    from composer_replication.ingestion.claude_code import SYSTEM_PROMPT, ClaudeCodeIngester
    from composer_replication.ingestion.formats import Head, ReadOptions, known_formats, register_reader
    from composer_replication.ingestion.log_file import LogFile
    from composer_replication.ingestion.pipeline import IngestReport, UnknownFormatError, ingest_logs, read_traces
    from composer_replication.ingestion.redaction import Redactor, redact_trace
    from composer_replication.ingestion.source import IngestOptions
    from composer_replication.ingestion.statistics import IngestionStats
    from composer_replication.ingestion.store import load_traces

__all__ = [
    "SYSTEM_PROMPT",
    "ClaudeCodeIngester",
    "Head",
    "IngestOptions",
    "IngestReport",
    "IngestionStats",
    "LogFile",
    "ReadOptions",
    "Redactor",
    "UnknownFormatError",
    "ingest_logs",
    "known_formats",
    "load_traces",
    "read_traces",
    "redact_trace",
    "register_reader",
]

_HOMES = {
    name: f"composer_replication.ingestion.{module}"
    for module, names in {
        "claude_code": ("SYSTEM_PROMPT", "ClaudeCodeIngester"),
        "formats": ("Head", "ReadOptions", "known_formats", "register_reader"),
        "log_file": ("LogFile",),
        "pipeline": ("IngestReport", "UnknownFormatError", "ingest_logs", "read_traces"),
        "redaction": ("Redactor", "redact_trace"),
        "source": ("IngestOptions",),
        "statistics": ("IngestionStats",),
        "store": ("load_traces",),
    }.items()
    for name in names
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
