"""Read logs to traces in memory: one file, or everything that some paths lead to. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from composer_replication.ingestion.formats import ReadOptions, find_format, format_names, read_as
from composer_replication.ingestion.log_file import LogFile, find_files, printable
from composer_replication.ingestion.source import IngestOptions, mark_repeats, own_turns
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import holds_traces, load_traces
from composer_replication.traces import Trace


class UnknownFormatError(ValueError):
    """A file is not in any format that is known."""

    def __init__(self, path: Path) -> None:
        known = ", ".join(format_names())
        super().__init__(f"{path} is not in a recognized log format ({known}); register_reader adds one")


def read_traces(
    path: str | Path, options: ReadOptions | None = None, stats: IngestionStats | None = None
) -> Iterator[Trace]:
    """Yield the traces of a log file with their errors classified. The format is found by the file's content.

    Raises:
        UnknownFormatError: the file is not in a known format.
        OSError: the file cannot be read.
    """
    log = LogFile(path)
    log_format = find_format(log)
    if log_format is None:
        raise UnknownFormatError(log.path)
    yield from read_as(log_format, log, options or ReadOptions(), IngestionStats() if stats is None else stats)


class EveryTrace:
    """The traces of logs, and of folders that `ingest` wrote. Iterate to read them, one at a time.

    Of turns that several files hold, all but the first are marked as copies. `files` are the files found, `logs` counts
    those that were logs (a folder of traces counts once), and `failures` says why a file could not be read. `on_file`
    is called after each of `sources`.

    Raises:
        NoSuchPathError: a path is neither a file nor a folder nor a glob that matches anything.
    """

    def __init__(self, paths: Collection[str | Path], options: IngestOptions | None = None) -> None:
        self.failures: dict[str, str] = {}
        self.on_file: Callable[[], None] = lambda: None
        self._options = options or IngestOptions()
        self._folders = [Path(path).expanduser() for path in paths if holds_traces(path)]
        logs = [path for path in paths if not holds_traces(path)]
        self.files = find_files(logs, on_error=lambda error: self._fail(Path(str(error.filename)), error))
        self.logs = len(self._folders)
        self._seen: set[str] = set()

    def __iter__(self) -> Iterator[Trace]:
        if self._options.redact:
            # Its pattern libraries take a while to load.
            from composer_replication.ingestion.redaction import redact_trace
        readers = [*((path, load_traces) for path in self._folders), *((path, self._read) for path in self.files)]
        for path, read in readers:
            try:
                for trace in read(path):
                    if self._options.redact:
                        redact_trace(trace)
                    yield trace
            except Exception as error:  # noqa: BLE001 - one bad file must not hide the others
                self._fail(path, error)
            self.on_file()

    @property
    def sources(self) -> int:
        """The number of files and folders of traces to read."""
        return len(self._folders) + len(self.files)

    def _read(self, path: Path) -> Iterator[Trace]:
        log = LogFile(path)
        log_format = find_format(log)
        if log_format is None:
            return
        self.logs += 1
        for trace in read_as(log_format, log, ReadOptions(subagents=self._options.subagents), IngestionStats()):
            if log_format.unique_ids:
                own = list(own_turns(trace))
                mark_repeats(trace, self._seen)
                self._seen.update(own)
            yield trace

    def _fail(self, path: Path, error: Exception) -> None:
        self.failures[printable(str(path))] = f"{type(error).__name__}: {error}"
