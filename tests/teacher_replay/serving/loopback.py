"""Clients of a local server (the OpenAI SDK, and bytes on a socket), and a model to serve."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse
from typing import Any

import openai

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.teacher_replay.serving import HuggingFaceTeacher, LocalTeachers

USER = [{"role": "user", "content": "Hello?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def model_teacher(model: Any = None, template: str = "qwen2_5", **options: Any) -> HuggingFaceTeacher:
    """A tiny random model as a teacher."""
    given = tiny_model("qwen2", vocab_size=640, seed=1) if model is None else model
    return HuggingFaceTeacher(given, tiny_tokenizer(template), **options)


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


def get(server: LocalTeachers, path: str) -> tuple[int, Any]:
    return send(server, request_bytes(b"", path=path, method="GET"))


def complete(server: LocalTeachers, **parameters: Any) -> Any:
    """A completion from the SDK: of `USER`, by the model "m", unless the parameters say otherwise."""
    request: dict[str, Any] = {"model": "m", "messages": USER, **parameters}
    return client(server).chat.completions.create(**request)


def open_request(server: LocalTeachers, body: Any) -> socket.socket:
    """Send a request and leave the connection open."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(request_bytes(json.dumps(body).encode()))
    return connection
