"""The command line: one module per verb, no logic of its own."""

from composer_replication.cli.app import main

__all__ = ["main"]
