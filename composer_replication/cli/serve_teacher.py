"""`composer-replication serve-teacher`: local models and Python functions with OpenAI's API."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

if TYPE_CHECKING:
    from composer_replication.teacher_replay.serving.http_server import LocalTeachers

_NAMED = re.compile(r"(?P<name>[\w.:@-]+)=(?P<what>.+)", re.DOTALL)


def serve_teacher(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="[NAME=]MODEL",
            help="A folder with a checkpoint or a LoRA adapter, an id on the hub, smollm2 or laboratory. Repeatable.",
        ),
    ] = None,
    callables: Annotated[
        list[str] | None,
        typer.Option(
            "--callable", metavar="[NAME=]MODULE:FUNCTION", help="A function of messages and tools. Repeatable."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")] = 0,
    device: Annotated[str, typer.Option(help="The device of models: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(help="The precision of models; auto is that of the checkpoint."),
    ] = "auto",
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens that a model generates per request.")
    ] = 1024,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Maximum number of requests that a model answers at once; memory grows with it.")
    ] = 8,
    api_key_variable: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The environment variable with the API key that requests must carry."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when ready: base_url, models, pid.")
    ] = False,
) -> None:
    """Serve local models and Python functions as teachers on 127.0.0.1, with OpenAI's API, until Ctrl-C or SIGTERM.

    A request's "model" selects a teacher by its name: NAME, else the model's folder or id, or the function's name. A
    single teacher answers to any name. When the server is ready, it prints its address to standard output.

    A function is called as f(messages, tools=None, **parameters), in threads. It returns a text, an assistant message
    or a Completion. Models may write tool calls in the formats of Hermes, Qwen, Llama and Mistral. Requests that arrive
    while a model generates are answered together in its next batch. Streaming is supported.

    A request with an unsupported parameter (response_format, logprobs, ...) gets an error.

    Exit code 1: the port is in use, or a model cannot be loaded.
    """
    from composer_replication.teacher_replay.serving.http_server import LocalTeachers, bind_port, serve_until_stopped

    wanted_models = [_named(given, _model_name) for given in models or []]
    wanted_callables = [_named(given, _function_name) for given in callables or []]
    names = [name for name, _ in (*wanted_models, *wanted_callables)]
    if not names:
        raise typer.BadParameter("give at least one --model or --callable")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise typer.BadParameter(f"two teachers are called {twice[0]!r}: name them, as in --model NAME=MODEL")
    key = _key(api_key_variable)
    for _, model in wanted_models:
        _check_place(model)
    # What fails fast comes first: the functions, then the port, then the models.
    teachers: dict[str, Any] = {name: _load_function(reference) for name, reference in wanted_callables}
    with closing(bind_port(port)) as held:
        for name, model in wanted_models:
            teachers[name] = _load_model(
                model, device=device, dtype=dtype, max_new_tokens=max_new_tokens, batch_size=batch_size
            )
        server = LocalTeachers({name: teachers[name] for name in names}, port=held, api_key=key)
        serve_until_stopped(server, lambda ready: _announce(ready, as_json=as_json))


def _announce(server: LocalTeachers, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"base_url": server.base_url, "models": server.models, "pid": os.getpid()}))
    else:
        typer.echo(f"serving {', '.join(server.models)} at {server.base_url}")


def _named(given: str, default: Any) -> tuple[str, str]:
    """Split NAME=WHAT. A path may contain an equals sign, too."""
    found = None if Path(given).exists() else _NAMED.fullmatch(given)
    name, what = (found["name"], found["what"]) if found is not None else (default(given), given)
    if not what.strip() or not name:
        raise typer.BadParameter(f"{given!r} names nothing to serve")
    return name, what


def _model_name(model: str) -> str:
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def _function_name(reference: str) -> str:
    return reference.rpartition(":")[2]


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        # It may be the key itself, which must not be shown.
        shown = repr(variable) if re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", variable) else "that was named"
        raise typer.BadParameter(f"--api-key-variable: the environment variable {shown} is not set, or empty")
    return key


def _load_function(reference: str) -> Any:
    from composer_replication.teacher_replay.serving.local_teacher import load_callable

    try:
        return load_callable(reference)
    except ValueError as error:
        raise typer.BadParameter(f"--callable: {error}") from error


def _check_place(model: str) -> None:
    from composer_replication.pretrained import model_place

    try:
        model_place(model)
    except ValueError as error:
        raise typer.BadParameter(f"--model: {error}") from None


def _load_model(model: str, *, device: str, **options: Any) -> Any:
    from composer_replication.teacher_replay.serving.model_teacher import HuggingFaceTeacher, choose_device

    try:
        choose_device(device)
    except ValueError as error:
        raise typer.BadParameter(f"--device: {error}") from None
    errors = Console(stderr=True)
    if not errors.is_terminal:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
    return HuggingFaceTeacher.load(model, device=device, **options)
