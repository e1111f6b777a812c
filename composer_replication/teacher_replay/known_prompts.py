"""What is known of a trace's prompts at one teacher: how long they are in tokens, and which of them it has cached."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from composer_replication.teacher_replay.prompts import Prompt
from composer_replication.teacher_replay.teachers import Teacher

# What a provider writes around messages and tools.
_AROUND = 1024
# What a chat template may add where a prompt goes on.
_BETWEEN = 256
# A token of more bytes than this on average is no token, but a wrong count.
LONGEST_TOKEN = 16
_REMEMBERED = 64


def token_bound(prompt: Prompt) -> int:
    """The most tokens that a prompt can have, for any tokenizer: one for every byte, and what a provider adds."""
    return prompt.size + _AROUND


class _Answered(NamedTuple):
    """What is kept of a prompt: not its messages, which may be all that is left of a context that was given up."""

    length: int
    digest: str
    size: int
    tokens: int


class KnownPrompts:
    """The prompts of one trace that one teacher has answered, newest last."""

    def __init__(self) -> None:
        self._answered: deque[_Answered] = deque(maxlen=_REMEMBERED)

    def add(self, prompt: Prompt, tokens: int) -> None:
        """Remember an answered prompt, with the number of tokens that the teacher counted (0: it did not say)."""
        self._answered.append(_Answered(prompt.length, prompt.digest, prompt.size, tokens))

    def token_bound(self, prompt: Prompt) -> int:
        """The most tokens that a prompt can have: where its beginning was counted, only the rest is guessed."""
        bounds = [token_bound(prompt)]
        for known in self._answered:
            if known.tokens * LONGEST_TOKEN >= known.size and prompt.begins_with(known):
                bounds.append(known.tokens + prompt.size - known.size + _BETWEEN)
        return min(bounds)

    def marks(self, prompt: Prompt, teacher: Teacher) -> list[int]:
        """Where to put cache marks for a teacher that wants them."""
        return prompt.marks(self._answered) if teacher.cache_control else []
