"""How a healing replica fetches a peer's state: one safetensors blob with a checksum over HTTP.

torchft's own transport unpickles what it receives, so whoever can answer it can run code here.
"""

from __future__ import annotations

import secrets
import threading
import time
import urllib.error
import urllib.request
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from torchft.checkpointing import CheckpointTransport

from composer_replication.diloco.state_file import dump_state, load_state

_POLL_S = 0.02
# Peers are on a network of their own, and a proxy would see the address.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SafetensorsTransport(CheckpointTransport[Any]):  # type: ignore[misc]
    """Serves this replica's state to the replicas that a quorum assigns to it, on `hostname` alone.

    The address has a random part, which peers get through their managers: others cannot guess it.
    """

    def __init__(self, hostname: str = "127.0.0.1") -> None:
        self._states: dict[str, bytes] = {}
        self._secret = secrets.token_urlsafe(16)
        states = self._states

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                state = states.get(self.path)
                if state is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(state)))
                self.end_headers()
                self.wfile.write(state)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer((hostname, 0), Handler)
        self._server.daemon_threads = True
        self._address = f"http://{hostname}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="state_transport", daemon=True).start()

    def metadata(self) -> str:
        """Return the address that peers ask."""
        return f"{self._address}/{self._secret}"

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        """Serve the state of `step` until `forget`; it is serialised before this returns."""
        self._states[f"/{self._secret}/{step}"] = dump_state(state_dict)

    def disallow_checkpoint(self) -> None:
        """Keep the state: after a failed round, whoever is healing would wait for it in vain."""

    def forget(self) -> None:
        """Free the state; whoever is being served still gets all of it."""
        self._states.clear()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Fetch the state of `step`, which the peer may still be writing.

        Raises:
            TimeoutError: the peer did not serve an undamaged state in time.
            OSError: the peer is gone.
        """
        until = time.monotonic() + timeout.total_seconds()
        reason: Exception | None = None
        while (left := until - time.monotonic()) > 0:
            try:
                with _opener.open(f"{metadata}/{step}", timeout=left) as answer:
                    return load_state(answer.read())
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
                reason = error
            except ValueError as error:
                reason = error
            time.sleep(_POLL_S)
        raise TimeoutError(
            f"replica {src_rank} did not serve its state of round {step} within {timeout.total_seconds():g} s: {reason}"
        )

    def shutdown(self, wait: bool = True) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
