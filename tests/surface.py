"""Describe the public surface as text: modules, names, parameters, defaults, and the command line.

`python tests/surface.py` writes it to surface.txt; `test_surface.py` fails when the two differ, so that every change
of the surface shows up as a line in a review.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, is_typeddict

import msgspec

FILE = Path(__file__).with_name("surface.txt")
# Packages whose public names are listed in `__all__`, then documented modules whose public names are those defined in
# them. What is not reached from here is internal, and may change without a line in surface.txt.
PACKAGES = (
    "composer_replication",
    "composer_replication.distillation",
    "composer_replication.diloco",
    "composer_replication.diloco.serverless",
    "composer_replication.ingestion",
    "composer_replication.hint_generator",
    "composer_replication.teacher_replay",
    "composer_replication.teacher_replay.serving",
    "composer_replication.replaysim",
    "composer_replication.config",
    "composer_replication.trainer",
)
MODULES = (
    "composer_replication.loss",
    "composer_replication.batch",
    "composer_replication.opsd",
    "composer_replication.traces",
    "composer_replication.distillation.simpo",
    "composer_replication.distillation.taid",
    "composer_replication.distillation.entropy_aware_opd",
    "composer_replication.replaysim.normalize",
    "composer_replication.trainer.composer_trainer",
    "composer_replication.trainer.data_collator",
)


def render() -> str:
    """The whole surface, one fact a line."""
    lines: list[str] = []
    described: set[str] = set()
    for name in PACKAGES:
        package = import_module(name)
        lines += [name, *_described(((public, getattr(package, public)) for public in package.__all__), described), ""]
    for name in MODULES:
        module = import_module(name)
        own = (one for one in vars(module).items() if getattr(one[1], "__module__", None) == module.__name__)
        lines += [name, *_described((one for one in own if not one[0].startswith("_")), described), ""]
    lines += [*_trainer_keywords(), *_configuration(), *_command_line()]
    return "\n".join(lines) + "\n"


def _described(members: Iterable[tuple[str, Any]], described: set[str]) -> Iterator[str]:
    """Public members, each with its parameters where it stands first."""
    for name, member in sorted(members, key=lambda one: one[0]):
        home = f"{getattr(member, '__module__', '')}.{name}"
        if inspect.isfunction(member):
            yield f"  {name}()"
            yield from () if home in described else _parameters(member, "    ")
        elif inspect.isclass(member):
            yield f"  class {name}"
            yield from () if home in described else _class(member)
        else:
            yield f"  {name}"
        described.add(home)


def _trainer_keywords() -> Iterator[str]:
    """The channel settings that the trainers take as keywords; their text ends with the default."""
    from composer_replication.channels.settings import keyword_docs

    for trainer in ("rollouts", "traces"):
        yield f"channel keywords of the trainer on {trainer}"
        yield from (
            f"  {name} = {text.rpartition('Default: ')[2][:-1]}" for name, text in keyword_docs(trainer).items()
        )
        yield ""


def _configuration() -> Iterator[str]:
    """The keys of a configuration file, with their defaults."""
    from composer_replication.config import Config
    from composer_replication.diloco.settings import DilocoSection

    def keys(section: Any, indent: str) -> Iterator[str]:
        for name, one in section.model_fields.items():
            kinds = (one.annotation, *get_args(one.annotation))
            inner = [kind for kind in kinds if hasattr(kind, "model_fields")]
            default = "" if inner or one.is_required() else f" = {one.default!r}"
            yield f"{indent}{one.alias or name}{default}"
            for kind in inner:
                yield from keys(kind, indent + "  ")
            if DilocoSection in kinds:  # the channels' own settings are listed above
                own = dataclasses.fields(DilocoSection)
                yield from (f"{indent}  {field.name} = {field.default!r}" for field in own)

    yield "configuration"
    yield from keys(Config, "  ")
    yield ""


def _class(member: type) -> Iterator[str]:
    if is_typeddict(member):
        yield from (f"    {name}" for name in member.__annotations__)
        return
    if issubclass(member, msgspec.Struct):
        for one in msgspec.structs.fields(member):
            default = one.default if one.default_factory is msgspec.NODEFAULT else f"{one.default_factory.__name__}()"
            yield f"    {one.name}" + ("" if default is msgspec.NODEFAULT else f" = {default!r}")
    fields = dataclasses.fields(member) if dataclasses.is_dataclass(member) else ()
    if not fields and "__init__" in vars(member):
        yield from _parameters(member, "    ", skip_first=False)
    for one in fields:
        if one.default_factory is not dataclasses.MISSING:
            yield f"    {one.name} = {one.default_factory.__name__}()"
        else:
            yield f"    {one.name}" + ("" if one.default is dataclasses.MISSING else f" = {one.default!r}")
    for name in getattr(member, "_fields", ()):
        yield f"    {name}"
    for name, attribute in sorted(vars(member).items()):
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(attribute, property):
            yield f"    {name} (property)"
        elif inspect.isfunction(attribute):
            yield f"    {name}()"
            yield from _parameters(attribute, "      ", skip_first=True)


def _parameters(member: Any, indent: str, *, skip_first: bool = False) -> Iterator[str]:
    parameters = list(inspect.signature(member).parameters.values())[int(skip_first) :]
    for parameter in parameters:
        keyword_only = "* " if parameter.kind is parameter.KEYWORD_ONLY else ""
        # A function's own text would hold an address.
        shown = getattr(parameter.default, "__qualname__", None) or repr(parameter.default)
        default = "" if parameter.default is parameter.empty else f" = {shown}"
        yield f"{indent}{keyword_only}{parameter.name}{default}"


def _command_line() -> Iterator[str]:
    from typer.main import get_command

    from composer_replication.cli.app import app

    root: Any = get_command(app)
    yield "command line: composer-replication, crf"
    yield from _options(root, "  ")
    for name, command in sorted(root.commands.items()):
        yield f"  {name}"
        yield from _options(command, "    ")
        for inner, verb in sorted(getattr(command, "commands", {}).items()):
            yield f"    {inner}"
            yield from _options(verb, "      ")


def _options(command: Any, indent: str) -> Iterator[str]:
    for option in command.params:
        names = "/".join([*option.opts, *option.secondary_opts])
        yield f"{indent}{names} = {option.default!r}"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
