"""Requests that fail: what can work later is repeated, what cannot is an error at once, and no secret is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from object_stores import KEY, S3, SECRET, Faults, faulty
from processes import wait_for

from composer_replication.diloco.serverless.store import ObjectStore, StoreError
from composer_replication.diloco.serverless.store_backends import FileSystem
from composer_replication.diloco.serverless.store_errors import one_line


def test_a_missing_bucket_fails_at_once(moto_server: S3) -> None:
    store = ObjectStore("s3://nobody-made-it/run", storage_options=moto_server.options)
    for request in (lambda: store.put("x", b"1"), lambda: store.get("x")):
        before = store.requests
        with pytest.raises(StoreError, match="create the bucket") as caught:
            request()
        assert store.requests == before + 1
        assert SECRET not in str(caught.value)


def test_wrong_credentials_fail_at_once_and_are_not_told(seaweedfs_server: S3) -> None:
    wrong: dict[str, Any] = {**seaweedfs_server.options, "secret": "a-wrong-secret-77"}
    store = ObjectStore(seaweedfs_server.uri("x"), storage_options=wrong)
    for request in (lambda: store.put("x", b"1"), lambda: store.get("x"), lambda: store.names("")):
        before = store.requests
        with pytest.raises(StoreError, match="check the credentials") as caught:
            request()
        assert store.requests == before + 1
        assert "a-wrong-secret-77" not in str(caught.value)
        assert KEY not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_a_client_says_of_credentials_is_left_out() -> None:
    options = {"key": KEY, "client_kwargs": {"token": SECRET}, "endpoint_url": "http://host"}
    said = one_line(
        OSError(f"{KEY} {SECRET}\nat http://me:{SECRET}@host/x?X-Amz-Signature=0f0f from http://host"), options
    )
    assert said == "OSError: *** *** at http://***@host/x from http://host"


def test_a_server_that_is_not_there_is_tried_for_as_long_as_allowed(moto_server: S3) -> None:
    nobody = replace(moto_server, endpoint="http://127.0.0.1:9")
    store = ObjectStore(nobody.uri("x"), storage_options=nobody.options, retry_s=0.5)
    with pytest.raises(StoreError, match="check the address and that the store runs") as caught:
        store.put("x", b"1")
    assert store.requests > 1
    assert SECRET not in str(caught.value)


def test_a_third_of_requests_may_fail(moto_server: S3, tmp_path: Path) -> None:
    faults = Faults(fail=1 / 3)
    with faulty(moto_server, faults) as s3:
        store = ObjectStore(s3.uri(tmp_path.name), storage_options=s3.options)
        for number in range(10):
            store.put(f"o/{number}", bytes([number]) * 100)
            assert store.get(f"o/{number}") == bytes([number]) * 100
            assert store.create(f"c/{number}", b"mine")
            assert not store.create(f"c/{number}", b"another's")
        assert len(store.names("")) == 20
        store.delete([f"o/{number}" for number in range(10)])
        assert store.names("") == sorted(f"c/{number}" for number in range(10))
    assert faults.counts["fail"] > 10


def test_a_creation_that_got_through_is_known_as_ones_own(moto_server: S3, tmp_path: Path) -> None:
    """Its first attempt is carried out and answered with an error, so that the second finds its own object."""
    faults = Faults(only="/members")
    faults.counts["fail"] = 1  # the next failure comes after the request was carried out
    with faulty(moto_server, faults) as s3:
        store = ObjectStore(s3.uri(tmp_path.name), storage_options=s3.options)
        assert store.create("probe", b"1")
        faults.fail = 1.0
        with ThreadPoolExecutor(1) as thread:
            created = thread.submit(store.create, "members", b"rank 3")
            wait_for(lambda: faults.counts["fail"] > 1)
            faults.fail = 0.0
            assert created.result()
    there = ObjectStore(moto_server.uri(tmp_path.name), storage_options=moto_server.options)
    assert there.get("members") == b"rank 3"


def test_what_arrives_in_part_is_read_again(moto_server: S3, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    faults = Faults(cut=0.5, only="/x")
    with faulty(moto_server, faults) as s3:
        store = ObjectStore(s3.uri(tmp_path.name), storage_options=s3.options)
        store.put("x", data)
        for start in range(0, 10_000, 500):
            assert store.get("x", start, start + 240) == data[start : start + 240]
    assert faults.counts["cut"] > 5


def test_an_object_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path), retry_s=0.2)
    store.put("x", bytes(100))
    with pytest.raises(StoreError, match="100 bytes instead of 150: the object is damaged"):
        store.get("x", 0, 150)
    assert store.requests > 2


def test_a_server_that_ignores_the_condition_is_found_out(moto_server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(self: FileSystem, name: str, data: bytes) -> bool:
        self.put(name, data)
        return True

    monkeypatch.setattr(FileSystem, "create", overwrite)
    store = ObjectStore(moto_server.uri("ignorant"), storage_options=moto_server.options)
    with pytest.raises(StoreError, match="If-None-Match is ignored"):
        store.create("x", b"1")
    assert store.names("") == []
