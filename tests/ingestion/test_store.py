"""The output folder: what it is called, what survives a crash, and what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingestion.sessions_on_disk import names

from composer_replication.ingestion.store import ManifestEntry, OutputError, TraceStore, load_traces, source_key
from composer_replication.traces import Source, Trace, Turn


def trace(name: str) -> Trace:
    turns = [Turn(role="user", content="hi"), Turn(role="assistant", content=name)]
    return Trace(trace_id=name, turns=turns, source=Source(file="a.jsonl", format="claude_code"))


def entry(name: str, **more: object) -> ManifestEntry:
    return ManifestEntry(source=f"/logs/{name}", key=f"key-{name}", status="read", size=1, modified_ns=2, **more)  # type: ignore[arg-type]


def test_traces_come_back_in_the_order_of_their_sources(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    for name, output in (("b", "1.jsonl"), ("a", "2.jsonl")):
        assert store.write_traces(output, [trace(f"{name}1"), trace(f"{name}2")]) == 2
        store.note(entry(name, output=output))
    assert [one.trace_id for one in load_traces(tmp_path)] == ["a1", "a2", "b1", "b2"]
    assert list(store.read("1.jsonl")) == [trace("b1"), trace("b2")]


def test_an_output_without_traces_is_no_file(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    assert store.write_traces("x.jsonl", []) == 0
    assert list((tmp_path / "traces").iterdir()) == []
    assert store.has(None)
    assert not store.has("x.jsonl")


def test_a_folder_without_traces_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"composer-replication ingest PATHS -o"):
        list(load_traces(tmp_path))
    (tmp_path / "traces").mkdir()  # traces nobody knows the sources of are none
    with pytest.raises(FileNotFoundError):
        list(load_traces(tmp_path))


def test_the_last_entry_of_a_source_counts_and_a_cut_line_is_passed_over(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.note(entry("a", traces=1))
    store.note(entry("b"))
    store.note(entry("a", traces=2))
    with (tmp_path / "manifest.jsonl").open("ab") as file:
        file.write(b'{"source":"/logs/c","key":"key-c","sta')
    entries = store.entries()
    assert entries.keys() == {"key-a", "key-b"}
    assert entries["key-a"].traces == 2
    store.write_manifest(entries.values())
    assert len((tmp_path / "manifest.jsonl").read_bytes().splitlines()) == 2
    assert store.entries() == entries


def test_an_error_while_writing_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.write_traces("x.jsonl", [trace("old")])

    def broken() -> object:
        yield trace("new")
        raise PermissionError("the source is locked")

    with pytest.raises(PermissionError, match="the source is locked"):  # the source's fault, not the folder's
        store.write_traces("x.jsonl", broken())  # type: ignore[arg-type]
    assert [one.trace_id for one in store.read("x.jsonl")] == ["old"]
    assert names(tmp_path / "traces") == ["x.jsonl"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/deeper"):
        with pytest.raises(OutputError, match=f"{folder}: .*a folder that can be written"):
            TraceStore(tmp_path / folder)
    store = TraceStore(tmp_path / "out")
    (tmp_path / "out" / "traces").rmdir()
    with pytest.raises(OutputError, match=r"x\.jsonl: No such file or directory; .* run again: what was done is kept"):
        store.write_traces("x.jsonl", [trace("a")])


def test_one_run_at_a_time_and_leftovers_of_a_killed_one_go(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    leftovers = [tmp_path / "traces" / ".a.jsonl.77.part", tmp_path / ".manifest.jsonl.77.part"]
    for part in leftovers:
        part.write_text("half")
    (tmp_path / "traces" / "mine.part").write_text("a user's own")
    with store.locked():
        assert not any(part.exists() for part in leftovers)
        with pytest.raises(OutputError, match="another run is writing here; wait for it"), store.locked():
            pass
        leftovers[0].write_text("of a process that was stopped")
    assert names(tmp_path / "traces") == ["mine.part"]
    with store.locked():
        pass


@pytest.mark.parametrize("stem", ["a b/c\nd..", "汉" * 200, "ü[red]\x1b[0m", "bad\udcff", "", "x" * 300])
def test_any_name_makes_a_file_name(tmp_path: Path, stem: str) -> None:
    store = TraceStore(tmp_path)
    name = store.output_name("0123456789ab", stem)
    assert store.write_traces(name, [trace("a")]) == 1
    assert names(tmp_path / "traces") == [name]
    assert set(name) & set("/\n\x1b[") == set()


def test_a_file_has_one_key_whatever_leads_to_it(tmp_path: Path) -> None:
    real = tmp_path / "a" / "x.jsonl"
    real.parent.mkdir()
    real.write_text("")
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "folder").symlink_to(real.parent)
    assert source_key(real) == source_key(tmp_path / "link") == source_key(tmp_path / "folder" / "x.jsonl")
    assert source_key(real) != source_key(tmp_path / "x.jsonl")
    assert source_key(tmp_path / "bad\udcff")
