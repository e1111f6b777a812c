"""S3 servers that the tests of a process share; each test has a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from object_stores import S3, moto, seaweedfs


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3]:
    with moto() as s3:
        yield s3


@pytest.fixture(scope="session")
def seaweedfs_server() -> Iterator[S3]:
    with seaweedfs() as s3:
        yield s3
