"""Finding log files, and reading their lines however they are damaged."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.ingestion import IngestionStats, LogFile
from composer_replication.ingestion import log_file as log_file_module
from composer_replication.ingestion.log_file import (
    UNREADABLE,
    NoSuchPathError,
    decode_value,
    find_files,
    recover_values,
    values_in_line,
    without_surrogates,
)
from composer_replication.traces import Trace


def written(folder: Path, content: bytes, name: str = "log.jsonl") -> LogFile:
    path = folder / name
    path.write_bytes(content)
    return LogFile(path)


def recovered(line: bytes, **options: Any) -> tuple[list[Any], IngestionStats]:
    stats = IngestionStats()
    return values_in_line(line, stats, **options), stats


# Lines and records.


def test_lines_have_numbers_and_blank_ones_are_passed(tmp_path: Path) -> None:
    log = written(tmp_path, b'{"a":1}\n\n  \r\n\x00\x00\n{"b":2}\r\n\n{"c":3}')
    assert list(log.lines()) == [(1, b'{"a":1}\n'), (5, b'{"b":2}\r\n'), (7, b'{"c":3}')]


def test_records_are_objects_and_the_rest_is_counted(tmp_path: Path) -> None:
    log = written(tmp_path, b'\xef\xbb\xbf{"a":1}\r\n[1]\n{"b":2}{"c":3}\n{"d":\n"text"\n\x00\x00{"e":5}\x00\n')
    stats = IngestionStats()
    assert list(log.records(stats)) == [(1, {"a": 1}), (3, {"b": 2}), (3, {"c": 3}), (6, {"e": 5})]
    assert (stats.n_records_total, stats.n_records_skipped, stats.skipped_truncated_lines) == (6, 2, 1)
    assert stats.skipped == {"not a JSON object": 2, "broken line": 1}
    assert stats.recovered["glued to another record"] == 1


def test_a_document_is_one_value(tmp_path: Path) -> None:
    stats = IngestionStats()
    assert written(tmp_path, b'\xef\xbb\xbf{\n "a": [1,\n 2]\n}\n\x00').document(stats) == {"a": [1, 2]}
    assert (stats.n_records_total, stats.skipped_truncated_lines) == (1, 0)
    assert written(tmp_path, b'{"a":1}\n{"b":2}\n').document(stats) is None
    assert (stats.n_records_total, stats.skipped_truncated_lines) == (1, 1)
    assert stats.skipped["not valid JSON"] == 1


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    log = written(tmp_path, b"")
    assert list(log.lines()) == []
    assert log.size == 0
    assert log.digest() == written(tmp_path, b"", "other").digest()


def test_names_that_are_no_text_can_be_written_as_json(tmp_path: Path) -> None:
    name = os.fsdecode(b"na\xffme.jsonl")
    log = written(tmp_path, b"", name)
    source = log.source("made_up", version="1", line=3)
    assert log.stem == "na\ufffdme"
    assert source.file.endswith("na\ufffdme.jsonl")
    assert (source.format, source.version, source.line) == ("made_up", "1", 3)
    msgspec.json.encode(Trace(log.stem, [], source))


# Bounds.


def test_what_is_appended_later_is_the_next_runs(tmp_path: Path) -> None:
    log = written(tmp_path, b'{"a":1}\n{"b":')
    assert log.size == 13
    with log.path.open("ab") as file:
        file.write(b'2}\n{"c":3}\n')
    stats = IngestionStats()
    assert list(log.records(stats)) == [(1, {"a": 1})]
    assert stats.skipped_truncated_lines == 1
    assert len(list(LogFile(log.path).records(IngestionStats()))) == 3


def test_a_file_that_shrinks_ends_where_it_ends(tmp_path: Path) -> None:
    log = written(tmp_path, b'{"a":1}\n' * 3)
    assert log.size == 24
    os.truncate(log.path, 8)
    assert len(list(log.lines())) == 1
    assert log._last_read is not None
    assert log._last_read.left == 0
    assert log.digest() == written(tmp_path, b'{"a":1}\n', "other").digest()


@pytest.mark.parametrize("buffer_size", [7, 64, 1024])
def test_lines_longer_than_the_longest_are_cut_and_the_next_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer_size: int
) -> None:
    monkeypatch.setattr(log_file_module, "LONGEST_LINE", 100)
    monkeypatch.setattr(log_file_module, "_TAIL", 5)
    short = [json.dumps({"number": number}).encode() for number in range(40)]
    long = json.dumps({"text": "x" * 5000}).encode()
    content = b"\n".join([*short[:20], long, *short[20:], long])
    log = written(tmp_path, content)
    with log.open(buffer_size) as file:
        lines = [line.rstrip(b"\n") for line in file]
    assert lines[:20] == short[:20]
    assert lines[21:41] == short[20:]
    for cut in (lines[20], lines[41]):
        assert long.startswith(cut)
        assert 100 < len(cut) <= 100 + buffer_size
    assert len(lines) == 42
    # The digest is of the whole file all the same, and took no second reading.
    digest = log.digest()
    monkeypatch.undo()
    assert digest == LogFile(log.path).digest()


def test_many_lines_whose_ends_are_far_from_the_buffers_end_are_not_one_long_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines as long as the buffer, their ends always at the same place in it."""
    monkeypatch.setattr(log_file_module, "LONGEST_LINE", 300)
    monkeypatch.setattr(log_file_module, "_TAIL", 8)
    lines = [b"x" * 50 + b"\n", *[b"%063d\n" % number for number in range(50)]]
    with written(tmp_path, b"".join(lines)).open(64) as file:
        assert list(file) == lines


# Digests.


def test_the_digest_is_the_contents(tmp_path: Path) -> None:
    content = b'{"a":1}\n' * 1000
    log = written(tmp_path, content)
    before = log.digest()
    for _ in log.lines():
        pass
    assert log.digest() == before == written(tmp_path, content, "copy").digest()
    assert log.digest() != written(tmp_path, content[:-1], "shorter").digest()
    assert log.digest() != written(tmp_path, content.replace(b"1", b"2", 1), "changed").digest()


def test_the_digest_costs_no_second_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = written(tmp_path, b'{"a":1}\n' * 1000)
    expected = LogFile(log.path).digest()
    list(log.lines())

    def no_more(*_: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(Path, "open", no_more)
    assert log.digest() == expected


def test_the_digest_of_a_file_that_was_half_read_is_that_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path, b'{"a":1}\n' * 1000)
    expected = LogFile(log.path).digest()
    with log.open(64) as file:
        file.readline()
    assert log.digest() == expected


# Values.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": "\xc3\xa4"}', {"a": "ä"}),
        (b'{"a": "x\xff\xfey"}', {"a": "x\ufffd\ufffdy"}),
        (b'{"a": "x\\ud83d"}', {"a": "x\ufffd"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a": "x\\udc00y", "\\ud800": ["\\udfff"]}', {"a": "x\ufffdy", "\ufffd": ["\ufffd"]}),
        (b'{"a": "tab\there \x01"}', {"a": "tab\there \x01"}),
        (b'{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        (b'{"a": -Infinity}', {"a": float("-inf")}),
        (b"null", None),
    ],
)
def test_values_that_can_be_read(text: bytes, value: Any) -> None:
    assert decode_value(text) == value
    assert recovered(b" " + text + b"\r\n")[0] == [value]


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a":1', b'{"a":1}{"b":2}', b"[" * 100_000, b"nul", b"\xff\xfe", b"{'a': 1}"]
)
def test_values_that_cannot_be_read(text: bytes) -> None:
    assert decode_value(text) is UNREADABLE


def test_replaced_characters_are_counted() -> None:
    for line in (b'{"a":"\xff"}', b'{"a":["\\ud800"]}'):
        assert recovered(line)[1].recovered == {"with replaced characters": 1}
    for line in (b'{"a":"\xc3\xa4 \xef\xbf\xbd"}', b'{"a":NaN}', b'{"a":"\\u00e4\x01"}'):
        assert not recovered(line)[1].recovered


@given(st.recursive(st.text() | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_only_surrogates_are_replaced(value: Any) -> None:
    assert without_surrogates(value) == value


# Recovery.

WHOLE = b'{"type":"user","n":1}'


def is_typed(value: dict[str, Any]) -> bool:
    return "type" in value


@pytest.mark.parametrize(
    ("line", "values", "broken"),
    [
        (WHOLE + WHOLE, 2, 0),
        (WHOLE + b"  \x00\t" + WHOLE + b" " + WHOLE, 3, 0),
        (WHOLE[:-1], 0, 1),
        (WHOLE[:-1] + WHOLE, 1, 1),
        (WHOLE[:9] + WHOLE, 1, 1),
        (WHOLE + WHOLE[:-4], 1, 1),
        (WHOLE + b"garbage", 1, 1),
        (b"garbage" + WHOLE, 1, 1),
        (WHOLE[5:] + WHOLE + WHOLE, 2, 1),
        (WHOLE + b"garbage" + WHOLE, 2, 1),
        (b"[1][2]", 0, 1),
        (WHOLE + b"[2]", 1, 1),
        (WHOLE + b"[2]" + WHOLE, 2, 1),
        # Pieces of a record that broke, followed by more of it; and a piece that is no record.
        (b'{"x":{"type":"user"},"y":', 0, 1),
        (b'{"x":[{"type":"user"},{"type":"user"}],' + WHOLE, 1, 1),
        (b'{"x":{"n":1}', 0, 1),
        (b"[" * 3000 + b"]" * 2999 + b'}{"type":1}', 1, 1),
    ],
)
def test_what_is_recovered_of_a_line(line: bytes, values: int, broken: int) -> None:
    found, stats = recovered(line, accept=is_typed)
    assert len(found) == values
    assert all("type" in value for value in found)
    assert stats.skipped_truncated_lines == stats.skipped["broken line"] == broken
    assert stats.recovered["beside a broken part"] == (values if broken else 0)
    assert stats.recovered["glued to another record"] == (0 if broken else values - 1)


def test_recovered_values_are_unicode_too() -> None:
    assert recovered(b'{"a":"\\ud800"}{"b":"\xff"}')[0] == [{"a": "\ufffd"}, {"b": "\ufffd"}]


def test_deep_nesting_is_counted_wherever_it_is_met() -> None:
    for depth in range(100, 1600, 25):
        nested = b'{"type":"\\ud800","n":' + b"[" * depth + b"]" * depth + b"}"
        for line in (nested, nested + WHOLE, WHOLE + nested, nested + nested + WHOLE):
            found, stats = recovered(line, accept=is_typed)
            accounted = len(found) + stats.skipped_truncated_lines
            assert accounted >= 1
            assert line.endswith(nested) or found[-1] == json.loads(WHOLE)


def test_very_long_lines_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file_module, "_LONGEST_RECOVERED", 30)
    assert len(recovered(WHOLE)[0]) == 1
    found, stats = recovered(WHOLE + WHOLE)
    assert (found, stats.skipped_truncated_lines) == ([], 1)


@pytest.mark.parametrize(
    "garbage", ['{"' * 200_000, '{"a":' * 900 + '"' + "x" * 400_000, '{"a":[' + '{"b":1},' * 40_000]
)
def test_garbage_is_given_up_before_it_takes_minutes(garbage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0
    scanner = log_file_module._SCANNER

    class Counting:
        def raw_decode(self, text: str, position: int) -> tuple[Any, int]:
            nonlocal attempts
            attempts += 1
            return scanner.raw_decode(text, position)

    monkeypatch.setattr(log_file_module, "_SCANNER", Counting())
    assert recover_values(garbage, lambda _: False) == ([], False)
    assert attempts < 50_000


def test_a_record_behind_a_large_broken_one_is_found() -> None:
    large = json.dumps({"type": "user", "files": [{"name": f"f{n}", "at": {"line": n}} for n in range(5000)]}).encode()
    found, stats = recovered(large[:-20] + WHOLE, accept=is_typed)
    assert found == [json.loads(WHOLE)]
    assert stats.skipped_truncated_lines == 1


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text() | st.integers(), min_size=1), min_size=1, max_size=4))
def test_glued_objects_are_all_found(objects: list[dict[str, Any]]) -> None:
    found, stats = recovered("".join(json.dumps(one) for one in objects).encode())
    assert found == objects
    assert stats.recovered["glued to another record"] == len(objects) - 1
    assert stats.skipped_truncated_lines == 0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/2.jsonl", "b/1.jsonl", "a.jsonl", "b/deep/er/3.txt", ".git/x.jsonl", "b/node_modules/y.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "z.pyc").write_text("x")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names(folder: Path, found: list[Path]) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in found]


ALL = ["a.jsonl", "b/1.jsonl", "b/2.jsonl", "b/deep/er/3.txt"]


def test_folders_are_searched_to_the_bottom_in_order(tree: Path) -> None:
    assert names(tree, find_files([tree])) == ALL
    assert names(tree, find_files([str(tree)])) == ALL
    assert find_files([tree / "empty"]) == []
    assert find_files([]) == []


def test_files_named_twice_are_found_once(tree: Path) -> None:
    (tree / "c.jsonl").symlink_to(tree / "a.jsonl")
    (tree / "link").symlink_to(tree / "b")
    found = find_files([tree / "b" / "1.jsonl", tree, tree / "b", tree / "b" / ".." / "a.jsonl"])
    assert names(tree, found) == ALL


def test_a_folder_of_ones_own_choice_is_searched_whatever_its_name(tree: Path) -> None:
    assert names(tree, find_files([tree / ".git"])) == [".git/x.jsonl"]


def test_globs(tree: Path) -> None:
    assert names(tree, find_files([tree / "b" / "*.jsonl"])) == ["b/1.jsonl", "b/2.jsonl"]
    assert names(tree, find_files([tree / "**" / "*.txt"])) == ["b/deep/er/3.txt"]
    assert names(tree, find_files([tree / "[b]"])) == ALL[1:]


def test_a_name_that_looks_like_a_glob_is_a_name_first(tree: Path) -> None:
    (tree / "[a].jsonl").write_text("x")
    assert names(tree, find_files([tree / "[a].jsonl"])) == ["[a].jsonl"]


def test_the_home_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert names(tree, find_files(["~/b/1.jsonl"])) == ["b/1.jsonl"]


@pytest.mark.parametrize("missing", ["nothing.jsonl", "nothing/*.jsonl", "*.nothing", "[z]"])
def test_what_is_not_there_raises(tree: Path, missing: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        find_files([tree, tree / missing])


def test_what_is_left_out(tree: Path) -> None:
    assert names(tree, find_files([tree], leave_out=[tree / "b"])) == ["a.jsonl"]
    assert names(tree, find_files([tree], leave_out=[tree / "b" / "deep", tree / "not there"])) == ALL[:3]
    assert find_files([tree], leave_out=[tree]) == []


def test_loops_of_links_end(tree: Path) -> None:
    (tree / "b" / "up").symlink_to(tree)
    (tree / "b" / "self").symlink_to(tree / "b" / "self")
    (tree / "b" / "deep" / "there").symlink_to(tree / "empty")
    (tree / "empty" / "back").symlink_to(tree / "b" / "deep")
    assert names(tree, find_files([tree])) == ALL
    with pytest.raises(NoSuchPathError, match="the link is broken"):
        find_files([tree / "b" / "self"])


def test_linked_folders_are_entered(tree: Path) -> None:
    (tree / "empty" / "link").symlink_to(tree / "b" / "deep")
    assert names(tree, find_files([tree / "empty"])) == ["empty/link/er/3.txt"]


def test_only_files_with_bytes_in_them(tree: Path) -> None:
    os.mkfifo(tree / "pipe.jsonl")
    (tree / "device.jsonl").symlink_to("/dev/zero")
    (tree / "nowhere.jsonl").symlink_to(tree / "gone")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tree / "socket"))  # a short name: those of sockets are limited
        assert names(tree, find_files([tree])) == ALL
    for name in ("pipe.jsonl", "device.jsonl", "nowhere.jsonl"):
        with pytest.raises(NoSuchPathError, match=name):
            find_files([tree / name])


def test_names_that_are_no_text(tree: Path) -> None:
    (tree / os.fsdecode(b"\xff.jsonl")).write_text("x")
    assert len(find_files([tree])) == len(ALL) + 1


def test_a_folder_that_may_not_be_read_is_warned_about(
    tree: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scandir = os.scandir

    def forbidding(path: str) -> object:  # the tests may run as root, who may read everything
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    with caplog.at_level(logging.WARNING):
        assert names(tree, find_files([tree])) == ALL[:3]
    assert "deep cannot be searched: Permission denied" in caplog.text
