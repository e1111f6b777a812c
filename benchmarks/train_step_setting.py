"""What every contestant of `train_step.py` trains on: one model, the same rollouts, pairs of the same kind.

A rollout is a coding agent's: a prompt with tools, a call with the code to run, the tool's answer, and a report. In a
quarter of them the call asks for a tool that does not exist. A pair has a prompt as long as a rollout's, and two calls
as responses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from composer_replication._tiny.models import tiny_tokenizer

Message = dict[str, Any]

GROUP = 4  # rollouts of one prompt, of which the first fails
_TOKENIZER_VOCABULARY = 2048
_SYSTEM = "You are a coding agent."
_UNKNOWN_TOOL = "execute_code"
_TALK = (
    "the parser reads every line of the file and keeps a table of names so that later passes can look them up when a "
    "test fails it prints what was expected beside what came out then the report goes to the reviewer who asks for a "
    "smaller change and one more check on empty input before anything is merged into the branch"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the model (a Qwen2 with a tied head) and of a step. Lengths are in tokens, and approximate."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    rollouts: int
    prompt: int
    turn: int
    tool_result: int


@dataclass(frozen=True)
class ScriptedRollout:
    """A conversation, the ids that a tool loop makes of it, and which of the completion's the model sampled."""

    prompt: list[Message]
    messages: list[Message]
    prompt_ids: list[int]
    completion_ids: list[int]
    generated: list[int]
    erring: bool


def run_python(code: str) -> str:
    """Run code.

    Args:
        code: What to run.
    """
    return code


def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: The file.
    """
    return path


TOOLS = [run_python, read_file]


def tool_schemas() -> list[dict[str, Any]]:
    """The tools as a chat template takes them."""
    from transformers.utils import get_json_schema

    return [get_json_schema(tool) for tool in TOOLS]


def make_tokenizer() -> Any:
    """A tokenizer with Qwen2.5's chat template, trained on such talk: as in real ones, a word is about a token."""
    untrained = tiny_tokenizer("qwen2_5")
    asked: list[Message] = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _TALK}]
    rendered = untrained.apply_chat_template(asked, tools=tool_schemas(), tokenize=False, add_generation_prompt=True)
    return tiny_tokenizer("qwen2_5", vocab_size=_TOKENIZER_VOCABULARY, more_text=[rendered])


def save_model(shape: Shape, folder: Path) -> None:
    """Write a random model: every contestant loads it, and TRL's SDPO trainer loads its teacher from the same place."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 64,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        # The usual 0.02 would make a model this small predict the same with and without a hint.
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


class Script:
    """Rollouts and pairs of a shape, the same for everyone."""

    def __init__(self, tokenizer: Any, shape: Shape) -> None:
        self._tokenizer = tokenizer
        self._shape = shape
        self._random = random.Random(0)
        self._tools = tool_schemas()
        self.prompts = [self._prompt() for _ in range(shape.rollouts // GROUP)]
        self.rollouts = [self._rollout(prompt, erring=place == 0) for prompt in self.prompts for place in range(GROUP)]
        self.pairs: list[dict[str, Any]] = [
            {
                "prompt": self._prompt(),
                "chosen": [self._call("run_python")],
                "rejected": [self._call("run_python")],
                "tools": self._tools,
            }
            for _ in range(shape.rollouts)
        ]

    def feedback(self, rollout: ScriptedRollout) -> str | None:
        """What the tool said if it refused, for a trainer that takes feedback as text."""
        return str(rollout.messages[1]["content"]) if rollout.erring else None

    def _prompt(self) -> list[Message]:
        system = {"role": "system", "content": _SYSTEM}
        scaffold = len(self._ids([system, {"role": "user", "content": ""}], generation=True))
        return [system, {"role": "user", "content": self._text(self._shape.prompt - scaffold)}]

    def _call(self, tool: str) -> Message:
        function = {"name": tool, "arguments": {"code": self._text(self._shape.turn - 24)}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}

    def _rollout(self, prompt: list[Message], *, erring: bool) -> ScriptedRollout:
        tool = _UNKNOWN_TOOL if erring else "run_python"
        # TRL's loop shows an exception as the text of a dict.
        error = str({"error": f"Tool {tool} not found. " + self._text(self._shape.tool_result - 30)})
        result = error if erring else self._text(self._shape.tool_result - 12)
        called, told = self._call(tool), {"role": "tool", "name": tool, "content": result}
        report = {"role": "assistant", "content": self._text(self._shape.turn)}
        prompt_ids = self._ids(prompt, generation=True)
        until_report = len(self._ids([*prompt, called, told], generation=True))
        end = self._tokenizer.eos_token_id
        ids = self._ids([*prompt, called, told, report])
        ids = ids[: len(ids) - ids[::-1].index(end)]  # without the template's newline after the last turn
        until_result = ids.index(end, len(prompt_ids)) + 1
        generated = [
            1 if place < until_result or place >= until_report else 0 for place in range(len(prompt_ids), len(ids))
        ]
        return ScriptedRollout(prompt, [called, told, report], prompt_ids, ids[len(prompt_ids) :], generated, erring)

    def _text(self, tokens: int) -> str:
        words: list[str] = []
        while len(self._tokenizer(" ".join(words))["input_ids"]) < tokens:
            words += self._random.choices(_TALK.split(), k=4)
        return " ".join(words)

    def _ids(self, messages: Sequence[Message], *, generation: bool = False) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            list(messages), tools=self._tools, add_generation_prompt=generation, return_dict=False
        )
        return ids
