"""Finding the format of a file, and adding formats."""

from __future__ import annotations

import importlib.metadata
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claude_sessions import Session, write_lines

from composer_replication.ingestion import LogFile, ingest_logs, load_traces
from composer_replication.ingestion import formats as formats_module
from composer_replication.ingestion.formats import find_format, known_formats, read_head, register_reader
from composer_replication.ingestion.pipeline import UnknownFormatError, read_traces

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_are_found_by_their_content(path: Path) -> None:
    found = find_format(LogFile(path))
    assert found is not None
    assert found.name == path.parent.name
    # The other formats may be asked in any order: only plain chats, which come last, take what another one takes.
    claims = {one.name for one in known_formats() if one.sniff(read_head(LogFile(path)))}
    assert claims - {"openai_chat"} <= {found.name}


def test_every_module_of_the_folder_is_a_format_and_chats_are_asked_last() -> None:
    modules = {path.stem for path in Path(formats_module.__path__[0]).iterdir()} - {"__init__", "__pycache__"}
    names = [one.name for one in known_formats()]
    assert sorted(names) == sorted(modules)
    assert (names[0], names[-1]) == ("claude_code", "openai_chat")


def test_objects_printed_one_after_another_are_ingested(tmp_path: Path) -> None:
    report = ingest_logs([FIXTURES / "otel" / "console.txt"], tmp_path, processes=1)
    (trace,) = load_traces(tmp_path)
    assert (trace.source.format, len(trace.turns)) == ("otel", 4)
    assert report.stats.skipped == {"broken line": 1}  # what the program itself printed


def test_a_first_value_that_is_too_long_is_not_looked_for(tmp_path: Path) -> None:
    console = (FIXTURES / "otel" / "console.txt").read_text()
    path = tmp_path / "console.txt"
    path.write_text(console.replace("{", "{" + "\n" * 1024 * 1024, 1))
    assert find_format(LogFile(path)) is None


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(formats_module, "_ADDED", {})
    formats_module._load_plugins.cache_clear()
    yield
    formats_module._load_plugins.cache_clear()


def example_of_the_docstring() -> str:
    """The code that stands in the module's docstring."""
    text = formats_module.__doc__ or ""
    start = text.index("    from composer_replication")
    end = text.index("\n", text.index('    register_reader("my_app"'))
    return textwrap.dedent(text[start:end])


def my_log(folder: Path) -> Path:
    records = [{"my_app": 1, "question": "Why?", "answer": "Because."}, {"question": "How?", "answer": "So."}]
    return write_lines(folder / "mine.log", [json.dumps(record).encode() for record in records])


def test_the_example_of_the_docstring_works(tmp_path: Path) -> None:
    path = my_log(tmp_path)
    with pytest.raises(UnknownFormatError, match=r"mine\.log is not in a recognized log format \(claude_code"):
        list(read_traces(path))
    code = example_of_the_docstring()
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(code, {})
    first, second = read_traces(path)
    assert [turn.content for turn in first.turns] == ["Why?", "Because."]
    assert (second.trace_id, second.source.format, second.source.line) == ("mine#2", "my_app", 2)
    assert second.source.file == str(path)


def test_an_entry_point_adds_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    package = folder / "my_plugin"
    package.mkdir(parents=True)
    *imports, last = example_of_the_docstring().splitlines()
    (package / "__init__.py").write_text("\n".join([*imports, "def add():", f"    {last}"]))
    info = folder / "my_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[composer_replication.readers]\nmine = my_plugin:add\n")
    monkeypatch.syspath_prepend(folder)
    assert len(importlib.metadata.entry_points(group="composer_replication.readers")) == 1
    log_format = find_format(LogFile(my_log(tmp_path)))
    assert log_format is not None
    assert log_format.name == "my_app"


def never(head: Any) -> bool:
    return False


def nothing(*_: Any) -> Iterator[Any]:
    return iter(())


def test_added_formats_are_asked_first_and_replace_those_of_their_name(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    path = session.write(tmp_path)
    built_in = [one.name for one in known_formats()]
    assert built_in[0] == "claude_code"
    assert len(set(built_in)) == len(built_in)
    register_reader("mine", lambda head: True, nothing, flags_errors=True)
    assert [one.name for one in known_formats()] == ["mine", *built_in]
    found = find_format(LogFile(path))
    assert found is not None
    assert (found.name, found.flags_errors) == ("mine", True)
    register_reader("mine", never, nothing)
    assert (found := find_format(LogFile(path))) is not None
    assert (found.name, found.flags_errors) == ("claude_code", True)
    register_reader("claude_code", never, nothing)
    assert [one.name for one in known_formats()] == ["mine", *built_in]
    assert find_format(LogFile(path)) is None
    assert [one.name for one in formats_module.added_readers()] == ["mine", "claude_code"]


def test_results_are_judged_by_their_text_only_where_the_log_has_no_flags(tmp_path: Path) -> None:
    code = example_of_the_docstring().replace(
        "yield Trace(",
        "turns.append(Turn(role='tool', content='Traceback (most recent call last):\\n  File \"a\"\\nKeyError: 1'))\n"
        "        yield Trace(",
    )
    exec(code, {})
    path = my_log(tmp_path)
    assert [trace.turns[2].is_error for trace in read_traces(path)] == [True, True]
    one = known_formats()[0]
    register_reader(one.name, one.sniff, one.read, flags_errors=True)
    assert [trace.turns[2].is_error for trace in read_traces(path)] == [False, False]


def test_the_public_names() -> None:
    import composer_replication.ingestion as ingestion

    for name in ingestion.__all__:
        assert getattr(ingestion, name) is not None


# The head of a file.


def head_of(folder: Path, content: bytes) -> Any:
    path = folder / "some.file"
    path.write_bytes(content)
    return read_head(LogFile(path))


def test_the_head_of_lines(tmp_path: Path) -> None:
    head = head_of(tmp_path, b'{"a":1}\n[5]\n{"b":2}{"c":3}\n')
    assert head.records == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert head.document is None


def test_the_head_is_bounded(tmp_path: Path) -> None:
    head = head_of(tmp_path, b'{"a":1}\n' * 10_000)
    assert len(head.records) == 64


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n\n", b"\x00\x00", b"  "])
def test_the_head_of_a_document(tmp_path: Path, start: bytes) -> None:
    for text in (b'{"a": [1]}', b'{\n "a": [\n 1]}\n', b'{"a":\n[1]}', b'{ "a": [1]}\n\n'):
        head = head_of(tmp_path, start + text)
        assert (head.records, head.document) == ([{"a": [1]}], {"a": [1]})
    for text in (b'[{"a": 1}]', b'[\n {"a": 1}\n]\n', b'[{"a":\n 1}]', b'[{"a": 1}\n]'):
        head = head_of(tmp_path, start + text)
        assert (head.records, head.document) == ([], [{"a": 1}])


@pytest.mark.parametrize(
    "damage",
    [
        *(b"garbage", b'{"type":"user","message":{"content":"cut', b"[", b"{" * 5000, b"\x00\xff" * 3000),
        *(b"[1, 2]", b"5", b"{}", b"\x00" * 10_000, b"\xef\xbb\xbf"),
    ],
)
@pytest.mark.parametrize("times", [1, 50])
def test_damaged_lines_at_the_start_do_not_hide_a_session(tmp_path: Path, damage: bytes, times: int) -> None:
    session = Session()
    session.then.prompt("go").says("m1", "yes")
    path = write_lines(tmp_path / "x", [*[damage] * times, *session.lines()])
    found = find_format(LogFile(path))
    assert found is not None
    assert found.name == "claude_code"
    (trace,) = read_traces(path)
    assert [turn.content for turn in trace.turns] == ["go", "yes"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"\x00" * 5000,
        b"hello\nworld\n",
        bytes(range(256)) * 500,
        b"[]",
        b"{}",
        b"{",
        b'{"a": 1}\n',
        b"null",
    ],
)
def test_files_that_are_no_logs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    assert find_format(LogFile(path)) is None
    with pytest.raises(UnknownFormatError):
        list(read_traces(path))


def test_the_extension_says_nothing(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    for name in ("a.txt", "b", "c.json", "d.log"):
        found = find_format(LogFile(session.write(tmp_path, name)))
        assert found is not None
        assert found.name == "claude_code"


def test_a_format_that_shows_late_is_found_in_a_long_log(tmp_path: Path) -> None:
    session = Session()
    for number in range(100):
        session.prompt(f"prompt {number}")
    lines = [b'{"note": "added by another program"}'] * 5 + session.lines()
    found = find_format(LogFile(write_lines(tmp_path / "a.jsonl", lines)))
    assert found is not None
    assert found.name == "claude_code"
