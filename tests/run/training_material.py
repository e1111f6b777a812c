"""What a training run needs, made small: a model's folder, traces with errors, pairs, prompts, an environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ingestion.claude_sessions import Session

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.ingestion.pipeline import ingest_logs

ENVIRONMENT = '''
class Doors:
    """A house whose doors open by their right name."""

    def __init__(self, word="sesame"):
        self._word = word
        self._opened = 0

    def reset(self, **row):
        self._opened = 0

    def open_door(self, name: str) -> str:
        """Open a door.

        Args:
            name: The door's name.
        """
        if name != self._word:
            raise ValueError(f"there is no door {name!r}")
        self._opened += 1
        return "open"

    def get_reward(self):
        return float(self._opened)


class NoReset:
    pass


class Unscored:
    def reset(self, **row):
        return None


def unscored():
    return Unscored()


class Untyped(Doors):
    def shut(self, name):
        """Shut a door.

        Args:
            name: The door's name.
        """


class Undocumented(Doors):
    def shut(self, name: str) -> str:
        return "shut"


class HalfDocumented(Doors):
    def shut(self, name: str) -> str:
        """Shut a door."""


class PromptOnly(Doors):
    def reset(self, prompt):
        return None


class Scale(Doors):
    def get_reward(self, scale):
        return scale


class Locked(Doors):
    def __init__(self):
        raise OSError("the key is lost")


def length_reward(completion_ids, factor=1.0, **_):
    return [factor * (len(ids) % 7) for ids in completion_ids]


class Constant:
    __name__ = "Constant"

    def __init__(self, value):
        self.value = value

    def __call__(self, completions, **_):
        return [self.value] * len(completions)


NOT_CALLABLE = 3
'''


def model_folder(folder: Path, *, vocab_size: int = 640, template: str | None = "qwen2_5") -> Path:
    """A random Qwen2 with its tokenizer; `template` None leaves the chat template out."""
    tokenizer = tiny_tokenizer(template or "qwen2_5")
    if template is None:
        tokenizer.chat_template = None
    tiny_model("qwen2", vocab_size=vocab_size, hidden_size=32, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trace_folder(folder: Path, *, sessions: int = 2, errors: bool = True) -> Path:
    """Sessions of two calls each, as `ingest` writes them; the first call of each fails if there are errors."""
    for number in range(sessions):
        session = Session(session_id=f"5e5510{number}")
        session.prompt(f"Read the file a{number}.py, please.")
        session.calls(f"m{number}1", f"c{number}1", "Read", path=f"a{number}.py")
        if errors:
            complaint = (
                "<tool_use_error>InputValidationError: Read failed: the required parameter `file_path` is missing"
            )
            session.result(f"c{number}1", complaint + "</tool_use_error>", is_error=True)
        else:
            session.result(f"c{number}1", "x = 0")
        session.calls(f"m{number}2", f"c{number}2", "Read", file_path=f"a{number}.py")
        session.result(f"c{number}2", f"x = {number}")
        session.says(f"m{number}3", f"It says that x is {number}.")
        session.write(folder / "logs", f"s{number}.jsonl")
    ingest_logs([str(folder / "logs")], folder / "traces", processes=1)
    return folder / "traces"


def pair(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "state_id": f"s::{number:04d}",
        "state_messages": [{"role": "user", "content": f"Show me file {number}."}],
        "chosen": f'[TOOL_USE] name=Read input={{"file_path": "f{number}.py"}}',
        "rejected": f'[TOOL_USE] name=Read input={{"path": "f{number}.py"}}',
        "n_teachers_agreeing": 2,
        **changes,
    }


def json_lines(file: Path, *rows: Any) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def logs_config(folder: Path, **training: Any) -> dict[str, Any]:
    """A configuration that learns from logs and pairs alone; everything it names is made in the folder."""
    return {
        "model": {"name": str(model_folder(folder / "model"))},
        "data": {
            "traces": str(trace_folder(folder)),
            "pairs": str(json_lines(folder / "pairs.jsonl", *map(pair, range(3)))),
            "max_length": 1024,
        },
        "channels": {"sdpo": {"gate": None}},
        "optimizer": {"lr": 1e-3},
        "training": {"output_dir": str(folder / "run"), **_SMALL, "batch_size": 2, **training},
    }


def rollout_config(folder: Path, **training: Any) -> dict[str, Any]:
    """A configuration that learns from rollouts in an environment."""
    (folder / "doors.py").write_text(ENVIRONMENT, encoding="utf-8")
    return {
        "model": {"name": str(model_folder(folder / "model"))},
        "data": {
            "prompts": str(json_lines(folder / "prompts.jsonl", *({"prompt": f"Open door {n}."} for n in range(4))))
        },
        "environment": {
            "class": f"{folder / 'doors.py'}:Doors",
            "rewards": [{"function": f"{folder / 'doors.py'}:length_reward", "weight": 0.5}],
        },
        "channels": {"grpo": {"num_generations": 2, "max_completion_length": 8}},
        "optimizer": {"lr": 1e-3},
        "training": {"output_dir": str(folder / "run"), **_SMALL, "batch_size": 2, **training},
    }


_SMALL: dict[str, Any] = {"steps": 2, "save_every": 1, "device": "cpu", "bf16": False, "gradient_checkpointing": False}
