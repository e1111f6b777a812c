"""Objects in folders, memory and S3: whole or not there, and created once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from object_stores import KEY, S3, SECRET
from processes import environment, wait_for

from composer_replication.diloco.serverless.store import ObjectStore

Open = Callable[..., ObjectStore]


@pytest.fixture(params=["folder", "memory", "moto", "seaweedfs"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a store; one place per test."""
    prefix = tmp_path.name
    if request.param == "folder":
        return lambda **settings: ObjectStore(str(tmp_path / "store"), **settings)
    if request.param == "memory":
        return lambda **settings: ObjectStore(f"memory://{prefix}", **settings)
    s3: S3 = request.getfixturevalue(f"{request.param}_server")
    return lambda **settings: ObjectStore(s3.uri(prefix), storage_options=s3.options, **settings)


def test_objects_are_written_read_in_parts_listed_and_removed(opened: Open) -> None:
    store = opened()
    assert store.get("a/x") is None
    assert store.names("a/") == []
    store.put("a/x", b"0123456789")
    store.put("a/y", b"")
    store.put("b", b"other")
    store.put("b", b"newer")
    assert store.get("a/x") == b"0123456789"
    assert store.get("a/x", 2, 5) == b"234"
    assert store.get("a/x", 7) == b"789"
    assert store.get("a/x", 0, 10) == b"0123456789"
    assert store.get("a/x", 3, 3) == b""
    assert store.get("a/y") == b""
    assert store.get("b") == b"newer"
    assert opened().names("a/") == ["a/x", "a/y"]
    assert store.names("") == ["a/x", "a/y", "b"]
    store.delete(["a/x", "never there"])
    assert store.get("a/x") is None
    assert store.names("") == ["a/y", "b"]


def test_bytes_are_counted(opened: Open) -> None:
    store = opened()
    store.put("x", bytes(1000))
    store.get("x")
    store.get("x", 10, 30)
    store.get("not there")
    assert (store.bytes_up, store.bytes_down) == (1000, 1020)
    assert store.requests == 4


def test_one_of_many_creators_wins(opened: Open) -> None:
    stores = [opened(), opened()]

    def create(number: int) -> tuple[bool, bytes | None]:
        store = stores[number % 2]
        mine = f"writer {number}".encode()
        return store.create("members", mine), store.get("members")

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(create, range(8)))
    (winner,) = [number for number, (won, _) in enumerate(results) if won]
    assert {there for _, there in results} == {f"writer {winner}".encode()}
    assert opened().names("") == ["members"]


def test_no_attempt_to_create_replaces_what_is_there(opened: Open) -> None:
    store = opened()
    store.put("x", b"first")
    assert not store.create("x", b"second")
    assert store.get("x") == b"first"


@pytest.mark.parametrize("call", ["put", "create"])
def test_nothing_of_a_writer_that_is_killed_is_read(tmp_path: Path, call: str) -> None:
    """The writer stands still in the middle of an object, because the disk takes one piece at a time, and is killed."""
    program = """
import sys, time
from composer_replication.diloco.serverless import store_backends
from composer_replication.diloco.serverless.store import ObjectStore
class Slow:
    def __init__(self, file): self.file = file
    def __enter__(self): self.file.__enter__(); return self
    def __exit__(self, *error): return self.file.__exit__(*error)
    def write(self, data):
        count = self.file.write(bytes(data[:1000])); print("written", flush=True); time.sleep(3600); return count
real = store_backends.Path.open
store_backends.Path.open = lambda path, *how, **more: Slow(real(path, *how, **more))
getattr(ObjectStore(sys.argv[1]), sys.argv[2])("r/x", bytes(5000))
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), call], stdout=subprocess.PIPE, env=environment()
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"written\n"
    store = ObjectStore(str(tmp_path))
    assert (store.get("r/x"), store.names("")) == (None, [])
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert (store.get("r/x"), store.names("")) == (None, [])
    assert len(list((tmp_path / "r").iterdir())) == 1  # the part, under another name
    store.put("r/x", b"whole")
    os.utime(next(path for path in (tmp_path / "r").iterdir() if path.name != "x"), (0, 0))
    store.delete(["r/x"])
    assert not (tmp_path / "r").exists()  # and what it left is swept


def test_readers_see_whole_objects_while_they_are_replaced(tmp_path: Path) -> None:
    program = """
import sys
from composer_replication.diloco.serverless.store import ObjectStore
store, number = ObjectStore(sys.argv[1]), 0
while True:
    number += 1
    store.put("x", bytes([number % 256]) * 300_000)
"""
    writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=environment())
    try:
        store, seen = ObjectStore(str(tmp_path)), set()

        def look() -> bool:
            if (data := store.get("x")) is not None:
                assert len(data) == 300_000
                assert data == data[:1] * len(data)
                seen.add(data[0])
            return len(seen) > 30

        wait_for(look)
    finally:
        writer.kill()
        writer.wait()


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """A limit on the size of files is the disk that any user can fill."""
    program = """
import json, resource, signal, sys
from composer_replication.diloco.serverless.store import ObjectStore, StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
store, said = ObjectStore(sys.argv[1]), []
for call in (store.put, store.create):
    try:
        call("r/x", bytes(50_000))
    except StoreError as error:
        said.append(str(error))
store.put("small", b"fits")
print(json.dumps([said, store.requests]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment(), capture_output=True, check=True
    )
    said, requests = json.loads(done.stdout)
    assert len(said) == 2
    for message in said:
        assert "'r/x'" in message
        assert str(tmp_path) in message
        assert "make room there or choose another place" in message
        assert "\n" not in message
    assert requests == 3  # a full disk is not tried again
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["small"]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ftp://host/run", "uri has the scheme 'ftp': use a plain path or one of file, memory, s3, gs, az, hf"),
        ("s3://", "name a bucket and a prefix, as in s3://bucket/run"),
        ("file://", "name a folder"),
        (f"s3://{KEY}:{SECRET}@bucket/run", "pass them as storage_options"),
    ],
)
def test_addresses_that_cannot_be_are_refused(uri: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ObjectStore(uri)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["", "/x", "../x", "a/../x", "a//x", "./x"])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        ObjectStore(str(tmp_path)).put(name, b"1")


@pytest.mark.parametrize("span", [(-1, 3), (3, 2)])
def test_ranges_that_cannot_be_are_refused(tmp_path: Path, span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a range"):
        ObjectStore(str(tmp_path)).get("x", *span)


def test_hf_cannot_create() -> None:
    store = ObjectStore("hf://datasets/someone/runs")
    assert not store.can_create
    with pytest.raises(ValueError, match="hf:// cannot create objects conditionally"):
        store.create("x", b"1")
