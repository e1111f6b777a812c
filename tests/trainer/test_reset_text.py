"""The text that an environment's `reset` returns is separated from the prompt that TRL appends it to."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from trainer.live_run import trainer

from composer_replication._tiny import tiny_model
from composer_replication.envs.house_style import HouseStyle
from composer_replication.envs.reset_text import apart, begin_episode, separating
from composer_replication.laboratory import laboratory_tokenizer

IMAGE = {"type": "image"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


class Talking(HouseStyle):
    """A house that says something when an episode begins."""

    def __init__(self, says: Any) -> None:
        self._says = says
        super().__init__()

    def reset(self, files: list[list[str]], steps: list[list[str]], **row: Any) -> Any:
        """Begin a task."""
        super().reset(files, steps)
        return self._says


class _PromptsMadeError(Exception):
    """Generation would begin now."""


def shown_prompt(folder: Path, says: Any, prompt: list[dict[str, Any]], *, named: bool = False) -> Any:
    """The last message's content of the prompt that TRL would generate from."""
    factory: Any = functools.partial(Talking, says)
    live = trainer(
        folder,
        model=tiny_model(vocab_size=len(laboratory_tokenizer())),
        environment_factory={"house": factory} if named else factory,
        alpha_sdpo=0.0,  # even where the rest is TRL's own, number for number
        beta_replay=0.0,
    )
    seen: list[Any] = []

    def generate(prompts: list[Any]) -> None:
        seen.extend(prompts)
        raise _PromptsMadeError

    live._generate = generate
    row = {"prompt": prompt, "files": [], "steps": [], "environment": "house"}
    with pytest.raises(_PromptsMadeError):
        live._generate_and_score_completions([row, row])
    assert seen[0] == seen[1]
    # Episodes without a trainer begin with the same prompt.
    assert begin_episode(Talking(says), row) == seen[0]
    assert row["prompt"] is prompt
    return seen[0][-1]["content"]


@pytest.mark.parametrize("named", [False, True])
def test_a_text_does_not_merge_with_the_last_word_of_the_prompt(named: bool, tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "Read the notes"}]
    assert shown_prompt(tmp_path, "There are 7 files.", prompt, named=named) == "Read the notes\n\nThere are 7 files."


@pytest.mark.parametrize("says", [None, "", [text("Files: 7")]])
@pytest.mark.parametrize("content", ["Go.", [text("Go.")]])
def test_other_texts_and_parts(says: Any, content: Any, tmp_path: Path) -> None:
    shown = shown_prompt(tmp_path, says, [{"role": "user", "content": content}])
    parts = shown if isinstance(shown, list) else [text(shown)]
    assert "".join(part["text"] for part in parts) == ("Go.\n\nFiles: 7" if says else "Go.")


@pytest.mark.parametrize(
    ("content", "returned", "expected"),
    [
        ("Go.", None, None),
        ("Go.", "", ""),
        ("Go.\n", "Files: 7", "Files: 7"),
        ("Go.", " Files: 7", " Files: 7"),
        ("", "Files: 7", "Files: 7"),
        (None, "Files: 7", "Files: 7"),
        ("Go.", [text("Files: 7"), IMAGE], [text("\n\nFiles: 7"), IMAGE]),
        ("Go.", [IMAGE, text("Files: 7")], [IMAGE, text("Files: 7")]),
        ("Go.", [], []),
        ([IMAGE, text("Go.")], "Files: 7", "\n\nFiles: 7"),
        ([text("Go."), IMAGE], "Files: 7", "Files: 7"),
        ([], "Files: 7", "Files: 7"),
        ([text("Go.")], [text("Files: 7")], [text("\n\nFiles: 7")]),
    ],
)
def test_what_is_put_between(content: Any, returned: Any, expected: Any) -> None:
    assert apart([{"role": "user", "content": content}], returned) == expected


def test_a_row_without_a_prompt_gets_the_text_as_it_is() -> None:
    environment = separating(functools.partial(Talking, "Files: 7"))()
    assert environment.reset(files=[], steps=[]) == "Files: 7"
    assert type(environment) is Talking


def test_reset_is_called_as_before() -> None:
    environment = separating(functools.partial(Talking, None))()
    assert environment.reset([["a.py", ""]], []) is None
    assert environment.reset(files=[], steps=[], prompt="A prompt that is plain text") is None


def test_an_environment_made_once_for_all_is_wrapped_once() -> None:
    one = Talking("Files: 7")
    factory = separating(lambda: one)
    assert factory() is factory() is one
    assert one.reset(files=[], steps=[], prompt=[{"role": "user", "content": "Go."}]) == "\n\nFiles: 7"


class Slotted:
    __slots__ = ()

    def reset(self, **row: Any) -> str:
        return "Files: 7"


@dataclass(frozen=True)
class Frozen(Slotted):
    """Raises an AttributeError."""


class Validated(BaseModel):
    """Raises a ValueError."""

    def reset(self, **row: Any) -> str:
        return "Files: 7"


@pytest.mark.parametrize("fixed", [Slotted, Frozen, Validated])
def test_an_environment_that_cannot_be_wrapped_is_named(fixed: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert separating(fixed)().reset(prompt=[{"role": "user", "content": "Go."}]) == "Files: 7"
    assert f"attributes of {fixed.__name__} cannot be set" in caplog.text
