"""Damaged logs: no crash, nothing valid lost, every loss counted.

A line is valid if it is one JSON value. Whatever happens to the lines around it, a valid line must contribute exactly
what it would have contributed without them.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from claude_sessions import Session, accounted_lines, read_file, read_turns, without_places, write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.ingestion import IngestionStats, LogFile, ReadOptions
from composer_replication.ingestion.claude_code import ClaudeCodeIngester
from composer_replication.ingestion.formats import find_format
from composer_replication.ingestion.formats.claude_code import read
from composer_replication.ingestion.log_file import find_files
from composer_replication.traces import Trace, Turn

TEXTS = ["plain", 'quo"te', '{"a": 1}', "ümläut 😀", "back\\slash", "a\nb\tc", "}{", '{"type":"user"}', ""]


def random_session(rng: random.Random, turns: int = 8) -> Session:
    """A session with something of everything that Claude Code writes."""
    session = Session()
    session.prompt(rng.choice(TEXTS) + " first")
    open_calls: list[str] = []
    for number in range(turns):
        message = f"m{number}"
        calls = [f"c{number}.{index}" for index in range(rng.choice([0, 1, 1, 3]))]
        blocks = ["thinking"] * rng.randint(0, 1) + ["text"] * rng.randint(1, 2) + calls
        for block in blocks:
            if rng.random() < 0.2:
                _ = session.progress() if rng.random() < 0.5 else session.summary()
            if rng.random() < 0.2 and open_calls:
                session.result(open_calls.pop(rng.randrange(len(open_calls))), rng.choice(TEXTS))
            if block == "thinking":
                session.thinks(message, rng.choice(TEXTS))
            elif block == "text":
                session.says(message, f"{rng.choice(TEXTS)} {len(session.records)}")
            else:
                session.calls(message, block, "Edit", old=rng.choice(TEXTS), new={"text": rng.choice(TEXTS)})
                open_calls.append(block)
        while open_calls and rng.random() < 0.9:
            session.result(
                open_calls.pop(rng.randrange(len(open_calls))), [{"type": "text", "text": rng.choice(TEXTS)}]
            )
        event = rng.random()
        if event < 0.15:
            session.queued(f"steering {number}")
        elif event < 0.25:
            session.compaction(f"summary {number}", kept=rng.sample(session.records[:1], 1))
        elif event < 0.35:
            session.microcompaction(f"c{number - 1}.0")
        elif event < 0.6:
            session.prompt(f"{rng.choice(TEXTS)} prompt {number}")
    return session


def is_one_value(line: bytes) -> bool:
    try:
        json.loads(line.decode("utf-8", "replace").strip("\x00 \t\r\n\ufeff"), strict=False)
    except ValueError:
        return False
    return True


def check(path: Path, content: bytes) -> tuple[list[Trace], IngestionStats]:
    """Read damaged bytes: every line is accounted for, and what the valid ones say is all there."""
    path.write_bytes(content)
    traces, stats = read_file(path)
    # The views and the encoding hold for whatever was read.
    for trace in traces:
        for state in trace.states():
            assert isinstance(state["student_action"], str)
        assert msgspec.json.decode(msgspec.json.encode(trace), type=Trace).turns == trace.turns
    lines = [line for line in content.split(b"\n") if line.strip(b"\x00 \t\r\xef\xbb\xbf")]
    valid = [line for line in lines if is_one_value(line)]
    assert accounted_lines(stats) == len(lines)
    assert stats.skipped_truncated_lines + stats.recovered["glued to another record"] >= (len(lines) > len(valid))
    assert stats.n_records_total >= len(valid)
    alone, alone_stats = read_file(write_lines(path.with_suffix(".valid"), valid))
    assert alone_stats.skipped_truncated_lines == 0
    if not stats.recovered["glued to another record"] and not stats.recovered["beside a broken part"]:
        assert [without_places(trace.turns) for trace in traces] == [without_places(trace.turns) for trace in alone]
        assert stats.n_records_total == alone_stats.n_records_total == len(valid)
    else:
        assert not said(alone) - said(traces)
    return traces, stats


def said(traces: list[Trace]) -> Counter[str]:
    """Everything that traces say, piece by piece, in no order."""
    pieces: Counter[str] = Counter()
    for trace in traces:
        for turn in trace.turns:
            for kind, text in (("text", turn.content), ("thinking", turn.thinking)):
                named = not (turn.tool_call_id or "").startswith("line ")
                whose = f"{turn.role} {turn.id or (turn.tool_call_id if named else '')} {kind}"
                pieces.update(f"{whose}: {one}" for one in text.split("\n") if one)
            pieces.update(f"call {call.id} {call.name} {call.arguments}" for call in turn.tool_calls)
    return pieces


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def test_a_log_cut_at_every_byte(folder: Path) -> None:
    """What a reader sees of a log that is being written, or that a crash cut off."""
    session = Session()
    session.then.prompt("ä{").calls("m1", "c1", "Edit", old='{"type":"user","sessionId":"s"}', new={"type": "user"})
    session.then.result("c1", [{"type": "text", "text": "😀"}]).agent_progress("a1", session.records[0])
    session.then.compaction("so far").says("m2", "done")
    lines = session.lines()
    whole = b"".join(line + b"\n" for line in lines)
    path = folder / "cut.jsonl"
    complete: dict[int, list[list[dict[str, Any]]]] = {}
    ends = [sum(len(one) + 1 for one in lines[:count]) for count in range(len(lines) + 1)]
    for size in range(len(whole) + 1):
        # A line counts as whole without its line end, too.
        count = max(index for index, end in enumerate(ends) if size >= end - (index > 0))
        if count not in complete:
            traces, stats = read_file(write_lines(path, lines[:count]))
            assert (stats.n_records_total, stats.skipped_truncated_lines) == (count, 0)
            complete[count] = [without_places(trace.turns) for trace in traces]
        path.write_bytes(whole[:size])
        traces, stats = read_file(path)
        assert [without_places(trace.turns) for trace in traces] == complete[count]
        assert stats.n_records_total == count
        assert stats.skipped_truncated_lines == (size > ends[count])
        assert not stats.recovered["beside a broken part"]


@pytest.mark.parametrize("seed", range(12))
def test_lines_with_a_flipped_bit(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = random_session(rng).lines()
    for _ in range(25):
        content = bytearray(b"".join(line + b"\n" for line in lines))
        for _ in range(rng.choice([1, 1, 1, 5])):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        check(folder / "flipped.jsonl", bytes(content))


@pytest.mark.parametrize("seed", range(8))
def test_lines_with_bytes_that_are_no_text(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = random_session(rng).lines()
    for _ in range(15):
        content = bytearray(b"".join(line + b"\n" for line in lines))
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            content[at:at] = rng.choice(
                [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\x00" * 50, b"\r", b"\xef\xbb\xbf"]
            )
        check(folder / "bytes.jsonl", bytes(content))


def test_invalid_text_in_a_string_keeps_the_record(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("AAA").says("m1", "BBB").calls("m1", "c1", "Edit", text="CCC")
    session.result("c1", "DDD", toolUseResult="EEE")
    whole = read_turns(session.write(tmp_path))
    content = (tmp_path / "session.jsonl").read_bytes()
    for mark in (b"AAA", b"BBB", b"CCC", b"DDD"):
        damaged = content.replace(mark, b"A\xffA")
        traces, stats = check(tmp_path / "invalid.jsonl", damaged)
        expected = msgspec.json.encode(whole).replace(mark, "A\ufffdA".encode())
        assert msgspec.json.encode(traces[0].turns) == expected
        assert stats.recovered["with replaced characters"] == 1
        assert stats.n_records_skipped == 0
    # What is not used is not looked at.
    assert not check(tmp_path / "invalid.jsonl", content.replace(b"EEE", b"\xff"))[1].recovered
    # A reader that copies results does not copy damage.
    (tmp_path / "copied.jsonl").write_bytes(content.replace(b"DDD", b"D\xffD"))
    (trace,) = read(LogFile(tmp_path / "copied.jsonl"), ReadOptions(verbatim_results=True), IngestionStats())
    assert json.loads(msgspec.json.encode(trace))["turns"][2]["content"] == "D\ufffdD"


@pytest.mark.parametrize("seed", range(8))
def test_cut_and_glued_lines(folder: Path, seed: int) -> None:
    """Two writers at once: lines without ends, and lines that begin where another was cut."""
    rng = random.Random(seed)
    lines = random_session(rng).lines()
    for _ in range(10):
        content = b""
        glued = cut = 0
        untouched = []
        for line in lines:
            chance = rng.random()
            if chance < 0.1:
                content += line
                glued += 1
            elif chance < 0.2:
                content += line[: rng.randrange(1, len(line))] + rng.choice([b"", b"\n"])
                cut += 1
                continue
            else:
                content += line + b"\n"
            untouched.append(line)
        traces, stats = check(folder / "glued.jsonl", content)
        # Every whole record of a session is found, even between two broken ones; a title has too little to tell it by.
        tellable = [line for line in untouched if b'"sessionId"' in line]
        alone, _ = read_file(write_lines(folder / "glued.untouched", tellable))
        assert not said(alone) - said(traces)
        assert stats.skipped_truncated_lines <= cut


@pytest.mark.parametrize("seed", range(8))
def test_doubled_lines(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = random_session(rng).lines()
    (whole,), whole_stats = read_file(write_lines(folder / "whole.jsonl", lines))
    doubled: list[bytes] = []
    for line in lines:
        doubled += [line] * rng.choice([1, 1, 2, 3])
    (trace,), stats = read_file(write_lines(folder / "doubled.jsonl", doubled))
    assert without_places(trace.turns) == without_places(whole.turns)
    assert stats.n_records_total == len(doubled)
    assert stats.n_records_skipped - whole_stats.n_records_skipped == len(doubled) - len(lines)


@pytest.mark.parametrize("seed", range(8))
def test_shuffled_lines(folder: Path, seed: int) -> None:
    """In any order, every block, text and result is there once, and results are with their calls."""
    rng = random.Random(seed)
    lines = random_session(rng).lines()
    (whole,), whole_stats = read_file(write_lines(folder / "whole.jsonl", lines))
    for _ in range(5):
        rng.shuffle(lines)
        (trace,), stats = read_file(write_lines(folder / "shuffled.jsonl", lines))
        assert said([trace]) == said([whole])
        assert sum(1 for _ in trace.states()) == sum(1 for _ in whole.states())
        assert (stats.n_records_total, stats.n_records_skipped) == (len(lines), whole_stats.n_records_skipped)
        assert stats.calls_without_result == whole_stats.calls_without_result
        answers = {call.id: answer and answer.content for _, call, answer in trace.calls()}
        assert answers == {call.id: answer and answer.content for _, call, answer in whole.calls()}


@given(st.lists(st.binary(max_size=60), max_size=8), st.integers(0, 2**32))
def test_garbage_between_lines(tmp_path_factory: pytest.TempPathFactory, garbage: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    lines = random_session(rng, 3).lines()
    for one in garbage:
        lines.insert(rng.randint(0, len(lines)), one)
    check(tmp_path_factory.getbasetemp() / "garbage.jsonl", b"\n".join(lines))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda one: (
        st.lists(one, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "id", "a"]), one, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.data())
def test_any_value_in_any_place(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Types that change from one version to the next: no crash, and the rest of the session is untouched."""
    session = random_session(random.Random(data.draw(st.integers(0, 50))), 2)
    place: Any = data.draw(st.sampled_from(session.records))
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(JSON)
    path = tmp_path_factory.getbasetemp() / "drift.jsonl"
    for subagents in (False, True):
        write_lines(path, [json.dumps(record).encode() for record in session.records])
        traces, stats = read_file(path, subagents=subagents)
        assert stats.n_records_total == len(session.records)
        for trace in traces:
            list(trace.states(system_prompt="S", max_history_tokens=50))
            msgspec.json.encode(trace)
    list(ClaudeCodeIngester().ingest(path))


def test_a_line_of_fifty_megabytes(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("go").calls("m1", "c1").result("c1", "x" * 50_000_000, toolUseResult=None).says("m2", "done")
    lines = session.lines()
    (trace,), stats = read_file(write_lines(tmp_path / "long.jsonl", lines))
    assert [len(turn.content) for turn in trace.turns] == [2, 0, 50_000_000, 4]
    assert stats.skipped_truncated_lines == 0
    lines[2] = lines[2][:-10]
    (trace,), stats = read_file(write_lines(tmp_path / "long.jsonl", lines))
    assert [turn.content for turn in trace.turns] == ["go", "", "done"]
    assert (stats.skipped_truncated_lines, stats.calls_without_result) == (1, 1)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_deep_nesting(tmp_path: Path, opening: str) -> None:
    session = Session()
    session.then.prompt("go").calls("m1", "c1", "Read", nested="NESTED").result("c1", "NESTED", toolUseResult="NESTED")
    session.says("m2", "done")
    closing = "".join("}" if one == "{" else "]" for one in reversed(opening) if one in "{[")
    template = session.lines()
    for depth in [*range(50, 1200, 50), *range(940, 1010, 3), 5000, 100_000]:
        nested = (opening * depth + "1" + closing * depth).encode()
        for name in (b'"nested":', b'"content":', b'"toolUseResult":'):
            lines = [line.replace(name + b'"NESTED"', name + nested) for line in template]
            ingester = ClaudeCodeIngester()
            states = list(ingester.ingest(write_lines(tmp_path / "deep.jsonl", lines)))
            stats = ingester.last_stats
            assert states[-1]["student_action"] == "done"
            assert accounted_lines(stats) == 4
            if depth * len(closing) < 900:
                assert stats.skipped_truncated_lines == 0


@pytest.mark.parametrize("subagents", [False, True])
def test_files_that_are_no_sessions(tmp_path: Path, subagents: bool) -> None:
    rng = random.Random(0)
    contents = [b"", b"\n", b"\x00" * 100_000, rng.randbytes(300_000), b"\x7fELF" + rng.randbytes(1000), b"{" * 50_000]
    contents += [b'{"' * 3000, b"\xef\xbb\xbf", "text\n".encode("utf-16") * 100, b"[]\n[]\n", b'""', b"{}\n" * 10]
    for content in contents:
        path = tmp_path / "binary.jsonl"
        path.write_bytes(content)
        traces, stats = read_file(path, subagents=subagents)
        assert traces == []
        lines = [line for line in content.split(b"\n") if line.strip(b"\x00 \t\r\xef\xbb\xbf")]
        assert accounted_lines(stats) == len(lines)
        assert find_format(LogFile(path)) is None


def test_a_loop_of_folders(tmp_path: Path) -> None:
    session = Session()
    session.prompt("go")
    session.write(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path / "a")
    (found,) = find_files([tmp_path])
    assert read_turns(found)[0].content == "go"


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    """A real writer, in pieces of any size: whatever a reader finds is a beginning of the session."""
    rng = random.Random(0)
    session = Session()
    for number in range(300):
        session.prompt(f"prompt {number}")
        session.calls(f"m{number}", f"c{number}", "Edit", text="ä" * rng.randint(0, 300))
        session.result(f"c{number}", "r" * rng.randint(0, 300))
    content = b"".join(line + b"\n" for line in session.lines())
    path = tmp_path / "growing.jsonl"
    path.write_bytes(b"")

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            start = 0
            while start < len(content):
                end = start + rng.randint(1, 4000)
                file.write(content[start:end])
                if end * 8 // len(content) > start * 8 // len(content):
                    came.acquire()  # the reader comes at least once in every eighth
                start = end
                time.sleep(0.0005)

    came = threading.Semaphore(0)
    writer = threading.Thread(target=write, daemon=True)
    seen: list[tuple[int, list[Turn], IngestionStats]] = []
    writer.start()
    while writer.is_alive():
        log = LogFile(path)
        stats = IngestionStats()
        traces = list(read(log, ReadOptions(), stats))
        seen.append((log.size, traces[0].turns if traces else [], stats))
        came.release()
    writer.join()
    whole = read_turns(path)
    assert len(whole) == 900
    assert len(seen) > 3
    for size, turns, stats in seen:
        # Exactly the records that were complete when the reader came; the rest of the last line is counted.
        complete = content[:size].split(b"\n")
        is_cut = bool(complete[-1]) and not is_one_value(complete[-1])
        assert stats.skipped_truncated_lines == is_cut
        assert stats.n_records_total == content.count(b"\n", 0, size) + (bool(complete[-1]) and not is_cut)
        assert len(turns) == stats.n_records_total
        assert turns == whole[: len(turns)]
    sizes = [size for size, *_ in seen]
    assert sizes == sorted(sizes)


def test_lines_end_as_they_like(folder: Path) -> None:
    session = random_session(random.Random(5))
    (whole,), _ = read_file(session.write(folder, "unix.jsonl"))
    for end in (b"\r\n", b"\n\n\n", b"\n \n", b"\x00\n", b" \t\n"):
        content = end.join(session.lines())
        traces, stats = check(folder / "ends.jsonl", content)
        assert without_places(traces[0].turns) == without_places(whole.turns)
        assert not stats.recovered


def test_lone_surrogates_and_nothing_else_are_replaced(tmp_path: Path) -> None:
    session = Session()
    session.then.prompt("a").calls("m1", "c1", "Edit", text="b")
    lines = session.lines()
    lines[0] = lines[0].replace(b'"a"', b'"\\ud83d|\\ud83d\\ude00"')
    lines[1] = lines[1].replace(b'"b"', b'"\\ude00"')
    (trace,), stats = read_file(write_lines(tmp_path / "x.jsonl", lines))
    assert trace.turns[0].content == "\ufffd|😀"
    assert trace.turns[1].tool_calls[0].arguments == {"text": "\ufffd"}
    assert stats.recovered["with replaced characters"] == 2
