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
# Text has fewer bytes to a token than this on average, but for long runs of one letter: a prompt that is too long even
# so is too long. One that is nearer to the limit is sent: a refusal is free.
_BYTES_PER_TOKEN = 6


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
        self._refused: tuple[_Answered, str] | None = None

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

    def refuse(self, prompt: Prompt, reason: str) -> None:
        """Remember a prompt that the teacher refused as too long; the shortest says most."""
        if self._refused is None or not prompt.begins_with(self._refused[0]):
            self._refused = _Answered(prompt.length, prompt.digest, prompt.size, 0), reason

    def too_long(self, prompt: Prompt, window: int | None) -> str | None:
        """Why a prompt cannot fit the teacher, None if it may: it goes on from one that did not, or from one whose
        tokens were counted."""
        if self._refused is not None and prompt.begins_with(self._refused[0]):
            return f"not asked: a shorter prompt did not fit ({self._refused[1]})"
        if window is None:
            return None
        counted = [(known.tokens, known.size) for known in self._answered if prompt.begins_with(known)]
        least = max(tokens + (prompt.size - size) // _BYTES_PER_TOKEN for tokens, size in [(0, 0), *counted])
        return f"not asked: at least {least:,} tokens, and {window:,} fit" if least > window else None

    def marks(self, prompt: Prompt, teacher: Teacher) -> list[int]:
        """Where to put cache marks for a teacher that wants them."""
        return prompt.marks(self._answered) if teacher.cache_control else []
