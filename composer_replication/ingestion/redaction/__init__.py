"""Redaction: secrets and personal data become placeholders, the same one for the same secret within a trace."""

from composer_replication.ingestion.redaction.redactor import Redactor, redact_trace

__all__ = ["Redactor", "redact_trace"]
