"""From agent logs to traces: one reader per log format, found by content; redaction; statistics."""

from composer_replication._lazy import lazy_exports

__all__ = [
    "IngestionStats",
    "LogFile",
    "ReadOptions",
    "formats",
    "register_reader",
]

_HOMES = {
    "IngestionStats": "composer_replication.ingestion.statistics",
    "LogFile": "composer_replication.ingestion.log_file",
    "ReadOptions": "composer_replication.ingestion.formats",
    "formats": "composer_replication.ingestion.formats",
    "register_reader": "composer_replication.ingestion.formats",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
