"""The command line: verbs that belong together share a module, without logic of their own."""

from composer_replication.cli.app import main

__all__ = ["main"]
