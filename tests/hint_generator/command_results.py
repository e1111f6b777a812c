"""The results of commands in `results/`: what they print, and what is to be said of it.

#### exit code $ command
> kind | the hint, or of an outcome the line that is quoted
output
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_CASE = re.compile(r"^#### (\d+) \$ (.*)\n> (\w+) \| (.*)\n((?:(?!#### ).*\n)*)", re.MULTILINE)


class Case(NamedTuple):
    exit_code: int
    command: str
    kind: str
    said: str
    output: str


def cases() -> list[Case]:
    texts = [path.read_text() for path in sorted((Path(__file__).parent / "results").glob("*.txt"))]
    return [
        Case(int(found[1]), found[2].replace("\\n", "\n"), found[3], found[4], found[5].strip("\n"))
        for text in texts
        for found in _CASE.finditer(text)
    ]
