"""S3 servers on this machine: SeaweedFS, moto, and one in front of either that fails as it is told."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import s3fs

KEY, SECRET = "AKIALOOPBACK", "loopback-secret-9f3a"
BUCKET = "runs"
_PORTS = ("master", "volume", "filer", "s3")


@dataclass(frozen=True)
class S3:
    """A running S3 server with an empty bucket."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        """What `storage_options` must be."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}

    def uri(self, prefix: str) -> str:
        """The address of a prefix in its bucket."""
        return f"s3://{BUCKET}/{prefix}"


@contextmanager
def moto() -> Iterator[S3]:
    """An S3 server in a thread of this process, which keeps objects in memory and takes any credentials."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield _with_bucket(S3(f"http://{host}:{port}"))
    finally:
        server.stop()


@contextmanager
def seaweedfs() -> Iterator[S3]:
    """A SeaweedFS server in a process of its own, which checks credentials."""
    folder = Path(tempfile.mkdtemp(prefix="seaweedfs-"))
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = dict(zip(_PORTS, _free_ports(2 * len(_PORTS)), strict=False))
    grpc = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    command: list[object] = [Path(sys.executable).with_name("weed"), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-dir={folder}", "-filer", "-s3", f"-s3.config={folder / 's3.json'}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=1024", "-volume.max=30"]
    command += ["-volume.minFreeSpace=1", "-master.telemetry=false"]
    command += [f"-{name}.port={port}" for name, port in ports.items()]
    command += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
    with (folder / "log").open("wb") as log:
        # No socket files outside of its folder: it takes the folder of temporary files for them.
        server = subprocess.Popen(
            [str(one) for one in command], cwd=folder, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)}
        )
    try:
        yield _with_bucket(S3(f"http://127.0.0.1:{ports['s3']}"), lambda: _check_running(server, folder / "log"))
    finally:
        server.kill()  # asked to end, it takes half a minute
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
        for name in _PORTS:
            Path(f"/tmp/seaweedfs-{name}-{ports[name]}.sock").unlink(missing_ok=True)
            Path(f"/tmp/seaweedfs-{name}-grpc-{grpc[name]}.sock").unlink(missing_ok=True)


def _check_running(server: subprocess.Popen[bytes], log: Path) -> None:
    if server.poll() is not None:
        raise RuntimeError(f"SeaweedFS ended with exit code {server.returncode}: {log.read_text()[-2000:]}")


def _with_bucket(s3: S3, check: Callable[[], None] = lambda: None) -> S3:
    until = time.monotonic() + 300
    system = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    while True:
        check()
        try:
            if not system.exists(BUCKET):
                system.mkdir(BUCKET)
            system.pipe_file(f"{BUCKET}/.ready", b"1")
            system.rm_file(f"{BUCKET}/.ready")
            return s3
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class Faults:
    """What the server in front does wrong, and how often it did. Faults come at even intervals.

    Change it while the server runs.
    """

    fail: float = 0.0
    """Share of requests answered with 503, half of them after the request was carried out."""
    delay_s: float = 0.0
    """Pause before each answer."""
    cut: float = 0.0
    """Share of objects sent as their first half; the length says so or not, in turn."""
    corrupt: float = 0.0
    """Share of objects sent with four bytes changed."""
    stale: bool = False
    """Whether listings are those from when it was set."""
    only: str = ""
    """Faults happen to objects with this in their names."""
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._listings: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}

    def strikes(self, kind: str, share: float, path: str) -> int:
        """The number of this fault, from 1, if it happens now; else 0."""
        with self._lock:
            if self.only not in path:
                return 0
            due = self._due.get(kind, 0.0) + share
            self._due[kind] = due - (due >= 1)
            if due < 1:
                return 0
            self.counts[kind] = self.counts.get(kind, 0) + 1
            return self.counts[kind]

    def listing(self, path: str, fresh: tuple[int, list[tuple[str, str]], bytes]) -> Any:
        """The answer to a listing: the one that was given first, if listings are stale."""
        with self._lock:
            if not self.stale:
                self._listings.clear()
                return fresh
            self.counts["stale"] = self.counts.get("stale", 0) + 1
            return self._listings.setdefault(path, fresh)


@contextmanager
def faulty(behind: S3, faults: Faults) -> Iterator[S3]:
    """An S3 server that passes requests to another one, and has faults."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(faults.delay_s)
            number = faults.strikes("fail", faults.fail, self.path)
            if number % 2:
                return self.answer(503, [], b"")
            status, headers, data = self.pass_on(body)
            if number:
                return self.answer(503, [], b"")
            if self.command == "GET" and "list-type" in self.path:
                status, headers, data = faults.listing(self.path, (status, headers, data))
            elif self.command == "GET" and status < 300 and len(data) > 1:
                if number := faults.strikes("cut", faults.cut, self.path):
                    return self.answer(status, headers, data[: len(data) // 2], len(data) if number % 2 else None)
                if faults.strikes("corrupt", faults.corrupt, self.path):
                    # Four bytes are all of some float, so that no rounding of a mean hides the change.
                    middle = len(data) // 2
                    changed = bytes(one ^ 0x55 for one in data[middle : middle + 4])
                    data = data[:middle] + changed + data[middle + 4 :]
            return self.answer(status, headers, data)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_request

        def pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            address = behind.endpoint.removeprefix("http://")
            connection = HTTPConnection(address, timeout=600)
            try:
                # The signature covers the Host header, so that it stays as the client wrote it.
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect"):
                        connection.putheader(name, value)
                connection.endheaders(body or None)
                response = connection.getresponse()
                return response.status, response.getheaders(), response.read()
            finally:
                connection.close()

        def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, length: int | None = None) -> None:
            self.send_response(status)
            kept = dict.fromkeys(("connection", "transfer-encoding", "content-length", "date", "server"))
            said = [value for name, value in headers if name.lower() == "content-length"]
            for name, value in headers:
                if name.lower() not in kept:
                    self.send_header(name, value)
            size = said[0] if self.command == "HEAD" and said else str(len(data) if length is None else length)
            self.send_header("Content-Length", size)
            if length is not None:
                self.close_connection = True
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield S3(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
