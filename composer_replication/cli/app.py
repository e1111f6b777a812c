"""The `composer-replication` command (short: `crf`): its verbs, and how errors are shown.

Exit codes: 0 done, 1 failed, 2 bad usage. An error is one line on standard error; `--debug` adds the traceback.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import composer_replication
from composer_replication.cli.diloco import diloco, run_replicas
from composer_replication.cli.doctor import doctor
from composer_replication.cli.eval import evaluate
from composer_replication.cli.ingest import ingest
from composer_replication.cli.pairs import normalize, pairs
from composer_replication.cli.quickstart import quickstart
from composer_replication.cli.replay import replay
from composer_replication.cli.serve_teacher import serve_teacher
from composer_replication.cli.train import init, train
from composer_replication.cli.warm_up import warm_up

_INTERRUPTED = 130  # typer's exit code for Ctrl-C

app = typer.Typer(
    name="composer-replication",
    help="Post-train any Hugging Face causal LM: GRPO, hint self-distillation and N-teacher trace replay.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(composer_replication.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every verb. `--debug` is listed here for the help; `run` takes it out of the arguments."""


def _paragraphs(docstring: str | None) -> str:
    """Join the lines of each paragraph: the terminal's width, not the source's, is to break them."""
    return "\n\n".join(" ".join(part.split()) for part in (docstring or "").split("\n\n"))


# In the order of use.
for _verb, _example in (
    (quickstart, "quickstart --steps 40"),
    (doctor, "doctor --json"),
    (init, "init environment -o house"),
    (ingest, "ingest ~/.claude/projects -o traces"),
    (serve_teacher, "serve-teacher --model ./my-model --port 8000"),
    (replay, "replay traces -o replayed --max-usd 20 --dry-run"),
    (pairs, "pairs traces --replay replayed -o pairs.jsonl"),
    (normalize, "normalize pairs.jsonl -o normalized.jsonl"),
    (warm_up, "warm-up smollm2 --env house_style -o warmed"),
    (train, "train train.yaml --set training.steps=200 --dry-run"),
    (evaluate, "eval runs/first --env house_style --n 200 --against ./my-model"),
):
    app.command(
        _example.split()[0], help=_paragraphs(_verb.__doc__), epilog=f"Example: composer-replication {_example}"
    )(_verb)

diloco.command(
    "run",
    help=_paragraphs(run_replicas.__doc__),
    epilog="Example: composer-replication diloco run train.yaml --replicas 2",
)(run_replicas)
app.add_typer(diloco, rich_help_panel="Commands")


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are printed, never raised."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
    try:
        # `--debug` may be before or after the verb.
        code = app(args=[argument for argument in arguments if argument != "--debug"], standalone_mode=False)
    except typer.TyperException as error:
        # Usage errors carry the exit code 2 and the command that was called.
        context: Any = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        if message:  # without a verb, the help has been printed already
            errors.print(f"[red]error:[/] {escape(_one_line(message) + hint)}")
        return int(getattr(error, "exit_code", 1))
    except Exception as error:  # noqa: BLE001 - the last place that can turn an error into one line
        if "--debug" in arguments:
            traceback.print_exc()
        message = _one_line(str(error)) or type(error).__name__
        errors.print(f"[red]error:[/] {escape(message)}")
        return 1
    if code == _INTERRUPTED:
        errors.print("stopped")
    return code if isinstance(code, int) else 0


def _one_line(message: str) -> str:
    """Remove line ends and control characters: messages contain file names, which anybody may have chosen."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(message.split()))
