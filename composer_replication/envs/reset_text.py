"""The text that an environment's `reset` returns, as it joins the prompt."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from composer_replication.traces import Message

logger = logging.getLogger(__name__)

_BLANK_LINE = "\n\n"


def begin_episode(environment: Any, row: Mapping[str, Any]) -> list[Message]:
    """Reset an environment with a row of a task list. Returns its prompt, with the text that `reset` returned."""
    prompt: list[Message] = list(row.get("prompt") or [{"role": "user", "content": ""}])
    returned = apart(prompt, environment.reset(**row))
    if returned is None:
        return prompt
    content = prompt[-1]["content"]
    if isinstance(content, str) != isinstance(returned, str):
        content, returned = (
            [{"type": "text", "text": one}] if isinstance(one, str) else one for one in (content, returned)
        )
    return [*prompt[:-1], {**prompt[-1], "content": content + returned}]


def separating(factory: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap a factory: the `reset` of its environments returns its text with a blank line before it where needed.

    TRL appends that text directly to the prompt's last message: "Read the notes" and "There are 7 files." would become
    "Read the notesThere are 7 files."
    """

    def made() -> Any:
        environment = factory()
        reset = environment.reset

        @functools.wraps(reset)
        def reset_apart(*args: Any, **row: Any) -> Any:
            return apart(row.get("prompt"), reset(*args, **row))

        try:
            # On the object: TRL looks at the class for tools and for the name of the reward.
            environment.reset = reset_apart
        except (AttributeError, TypeError, ValueError):  # slots, a frozen dataclass, a pydantic model
            logger.warning(
                "attributes of %s cannot be set, so the text of its reset() is appended to the prompt as it is: begin "
                "it with a line break",
                type(environment).__name__,
            )
        return environment

    return made


def apart(prompt: Sequence[Mapping[str, Any]] | str | None, returned: Any) -> Any:
    """Separate what `reset` returned (a text, a list of content parts, or None) from the prompt's last message."""
    before = _text(prompt[-1].get("content"), -1) if isinstance(prompt, list) and prompt else ""
    after = _text(returned, 0)
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return returned
    separated = _BLANK_LINE + after
    return separated if isinstance(returned, str) else [{**returned[0], "text": separated}, *returned[1:]]


def _text(content: Any, place: int) -> str:
    """Return a content's text, or that of its part at `place`; empty if there is an image, or nothing."""
    if isinstance(content, list):
        content = content[place].get("text") if content else None
    return content if isinstance(content, str) else ""
