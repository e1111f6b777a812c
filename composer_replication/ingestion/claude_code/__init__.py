"""Claude Code sessions: the reader, and `ClaudeCodeIngester` for one file at a time."""

from composer_replication.ingestion.claude_code.ingester import SYSTEM_PROMPT, ClaudeCodeIngester
from composer_replication.ingestion.claude_code.reader import read, sniff
from composer_replication.ingestion.statistics import IngestionStats

__all__ = ["SYSTEM_PROMPT", "ClaudeCodeIngester", "IngestionStats", "read", "sniff"]
