"""What leaves the machine is redacted by the redactor of `ingest`, whatever was done to a trace before."""

from __future__ import annotations

from typing import Any, Protocol


class Redacts(Protocol):
    """What `Redactor` does: `value` learns while it replaces, `value_again` replaces what was learned later."""

    def value(self, value: Any, /) -> Any: ...
    def value_again(self, value: Any, /) -> Any: ...


def new_redactor() -> Redacts:
    """A redactor for one trace."""
    # Imported here: its rules take a moment to compile.
    from composer_replication.ingestion.redaction import Redactor

    return Redactor()
