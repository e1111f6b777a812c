"""Describe the public surface as text: modules, names, parameters, defaults, and the command line.

`python tests/surface.py` writes it to surface.txt; `test_surface.py` fails when the two differ, so that every change
of the surface shows up as a line in a review.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, is_typeddict

import msgspec

FILE = Path(__file__).with_name("surface.txt")
# Packages whose public names are listed in `__all__`, then modules whose public names are those defined in them.
PACKAGES = (
    "composer_replication",
    "composer_replication.distillation",
    "composer_replication.diloco",
    "composer_replication.ingestion",
    "composer_replication.hint_generator",
    "composer_replication.teacher_replay",
    "composer_replication.teacher_replay.serving",
    "composer_replication.replaysim",
    "composer_replication.config",
    "composer_replication.trainer",
    "composer_replication.trainer.teachers",
)
MODULES = (
    "composer_replication.loss",
    "composer_replication.channels",
    "composer_replication.batch",
    "composer_replication.opsd",
    "composer_replication.rendering",
    "composer_replication.causal_lm",
    "composer_replication.distillation.dpo",
    "composer_replication.distillation.simpo",
    "composer_replication.distillation.taid",
    "composer_replication.distillation.entropy_aware_opd",
    "composer_replication.distillation.fused.head",
    "composer_replication.distillation.fused.divergence",
    "composer_replication.distillation.fused.logprobs",
    "composer_replication.doctor",
    "composer_replication.traces",
    "composer_replication.histories",
    "composer_replication.ingestion.formats",
    "composer_replication.ingestion.log_file",
    "composer_replication.ingestion.statistics",
    "composer_replication.ingestion.reading",
    "composer_replication.ingestion.source",
    "composer_replication.ingestion.pipeline",
    "composer_replication.ingestion.store",
    "composer_replication.ingestion.audit",
    "composer_replication.ingestion.claude_code.ingester",
    "composer_replication.ingestion.redaction.redactor",
    "composer_replication.ingestion.redaction.trace",
    "composer_replication.hint_generator.kinds",
    "composer_replication.hint_generator.context",
    "composer_replication.hint_generator.classifier",
    "composer_replication.hint_generator.marking",
    "composer_replication.hint_generator.templates",
    "composer_replication.hint_generator.layers",
    "composer_replication.hint_generator.judge",
    "composer_replication.teacher_replay.records",
    "composer_replication.teacher_replay.teachers",
    "composer_replication.teacher_replay.keys",
    "composer_replication.teacher_replay.prices",
    "composer_replication.teacher_replay.ledger",
    "composer_replication.teacher_replay.gating",
    "composer_replication.teacher_replay.replay",
    "composer_replication.teacher_replay.replay_report",
    "composer_replication.teacher_replay.estimate",
    "composer_replication.teacher_replay.sources",
    "composer_replication.teacher_replay.replay_folder",
    "composer_replication.teacher_replay.pairs",
    "composer_replication.teacher_replay.pair_report",
    "composer_replication.teacher_replay.pair_files",
    "composer_replication.teacher_replay.preference",
    "composer_replication.teacher_replay.replayed_pairs",
    "composer_replication.teacher_replay.families",
    "composer_replication.teacher_replay.action_judge",
    "composer_replication.teacher_replay.agreement.comparison",
    "composer_replication.teacher_replay.agreement.exact",
    "composer_replication.teacher_replay.agreement.action",
    "composer_replication.teacher_replay.agreement.clusters",
    "composer_replication.teacher_replay.agreement.votes",
    "composer_replication.teacher_replay.agreement.judge",
    "composer_replication.replaysim.normalizer",
    "composer_replication.replaysim.normalize",
    "composer_replication.replaysim.records",
    "composer_replication.replaysim.report",
    "composer_replication.shared_prefix",
    "composer_replication.config.configuration",
    "composer_replication.config.sections",
    "composer_replication.trainer.composer_trainer",
    "composer_replication.trainer.trace_trainer",
    "composer_replication.trainer.data_collator",
    "composer_replication.trainer.settings",
    "composer_replication.trainer.hint_gate",
    "composer_replication.trainer.channel_engine",
    "composer_replication.trainer.channel_log",
    "composer_replication.trainer.checkpoint",
    "composer_replication.trainer.rewards",
    "composer_replication.trainer.teachers.teacher",
    "composer_replication.trainer.rollouts.rollout",
    "composer_replication.trainer.rollouts.hint_sites",
    "composer_replication.trainer.rollouts.hints",
    "composer_replication.trainer.rollouts.hinted_rows",
    "composer_replication.trainer.preference_rows",
    "composer_replication.trainer.replay.pairs",
    "composer_replication.trainer.reference_logprobs",
    "composer_replication.trainer.reference_logprobs",
    "composer_replication.trainer.traces.rows",
    "composer_replication.trainer.run.training_run",
    "composer_replication.trainer.run.dry_run",
    "composer_replication.trainer.run.optimizers",
)


def render() -> str:
    """The whole surface, one fact a line."""
    lines: list[str] = []
    for name in PACKAGES:
        package = import_module(name)
        lines += [name, *(f"  {public}" for public in sorted(package.__all__)), ""]
    for name in MODULES:
        lines += [name, *_module(import_module(name)), ""]
    lines += _command_line()
    return "\n".join(lines) + "\n"


def _module(module: Any) -> Iterator[str]:
    for name, member in sorted(vars(module).items()):
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(member):
            yield f"  {name}()"
            yield from _parameters(member, "    ")
        elif inspect.isclass(member):
            yield f"  class {name}"
            yield from _class(member)


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


def _options(command: Any, indent: str) -> Iterator[str]:
    for option in command.params:
        names = "/".join([*option.opts, *option.secondary_opts])
        yield f"{indent}{names} = {option.default!r}"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
