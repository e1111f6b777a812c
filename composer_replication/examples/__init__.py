"""First configurations for `train`, with the files that they need. `composer-replication init` writes them.

logs/          train.yaml: learn from the logs of a coding agent
environment/   train_environment.yaml, house.py, tasks.jsonl: learn in an environment
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from composer_replication._files import whole_file

# The configuration comes first.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "logs": ("train.yaml",),
    "environment": ("train_environment.yaml", "house.py", "tasks.jsonl"),
}


def write_example(name: str, folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the files of an example into a folder: all of them, or none.

    Raises:
        FileExistsError: one of them exists already.
        OSError: the folder cannot be written to.
    """
    targets = [folder / file for file in EXAMPLES[name]]
    for target in targets:
        if target.is_dir():
            raise IsADirectoryError(f"{target}: a folder is in the way; nothing was written")
    there = [str(target) for target in targets if target.exists()]
    if there and not overwrite:
        raise FileExistsError(f"{', '.join(there)}: already there, and nothing was written; --force overwrites")
    with ExitStack() as stack:
        for target in targets:
            part = stack.enter_context(whole_file(target, "examples"))
            part.write_bytes(Path(__file__).parent.joinpath(name, target.name).read_bytes())
    return targets


def header(configuration: Path) -> str:
    """Return the comment at the top of a configuration: what it does, and the commands that run it."""
    lines = configuration.read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)
