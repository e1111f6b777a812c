"""Clients of a local server: the OpenAI SDK, and bytes on a socket."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse
from typing import Any

import openai

from composer_replication.teacher_replay.serving import LocalTeachers

USER = [{"role": "user", "content": "Hello?"}]


def client(server: LocalTeachers, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key=key, max_retries=0)


def request_bytes(body: bytes, *headers: str, path: str = "/v1/chat/completions", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def send(server: LocalTeachers, data: bytes) -> tuple[int, Any]:
    """Send bytes as they are; the status, and the body as JSON if it is."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(data)
        response = HTTPResponse(connection)
        response.begin()
        body = response.read()
    try:
        return response.status, json.loads(body)
    except ValueError:
        return response.status, body


def post(server: LocalTeachers, body: Any, *headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(server, request_bytes(data, *headers))
