"""Small random causal LMs of real architectures, and tokenizers trained on the spot with real chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from composer_replication._arguments import check_choice
from composer_replication._optional import MissingExtraError

# A few lines of agent talk that the tokenizers are trained on.
_CORPUS = (
    "You are a senior engineer who works as a coding agent in a terminal.",
    "Please fix the failing test, read the file first, then run the tests again and report what you changed.",
    'def factorial(n):\n    """Return n!."""\n    return 1 if n < 2 else n * factorial(n - 1)\n',
    "def binary_search(items, target):\n    low, high = 0, len(items) - 1\n    while low <= high:\n"
    "        middle = (low + high) // 2\n        if items[middle] == target:\n            return middle\n"
    "        if items[middle] < target:\n            low = middle + 1\n        else:\n            high = middle - 1\n"
    "    return -1\n",
    '{"name": "read_file", "arguments": {"path": "src/factorial.py"}}',
    '{"name": "run_python", "arguments": {"code": "print(factorial(5))"}}',
    '{"type": "function", "function": {"name": "run_python", "description": "Run code.", "parameters": '
    '{"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}',
    "Error: unknown tool 'open_file'. Available tools: read_file, run_python.",
    "Traceback (most recent call last): FileNotFoundError: [Errno 2] No such file or directory: 'factorial.py'",
    "Reminder: the tool is called read_file and takes the argument path. The result is 120, and all tests pass now.",
    "Environment: ipython Cutting Knowledge Date: December 2023 Today Date: 26 Jul 2024",
    "0 1 2 3 4 5 6 7 8 9 10 24 120 720 5040",
)


@dataclass(frozen=True)
class _Dialect:
    """A model family's special tokens, and the name of its template in TRL."""

    template: str
    end_of_turn: str
    special_tokens: tuple[str, ...]
    bos: str | None = None


CHAT_TEMPLATES: dict[str, _Dialect] = {
    "qwen2_5": _Dialect(
        "qwen2_5.jinja",
        "<|im_end|>",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    ),
    "llama3_1": _Dialect(
        "llama3_1.jinja",
        "<|eot_id|>",
        ("<|pad|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
        bos="<|begin_of_text|>",
    ),
}


def tiny_tokenizer(template: str = "qwen2_5", *, vocab_size: int = 640, more_text: Sequence[str] = ()) -> Any:
    """Train a fast byte-level BPE tokenizer with the chat template of Qwen2.5 ("qwen2_5") or Llama 3.1 ("llama3_1").

    It is also trained on `more_text`: text of that kind then takes fewer tokens.

    Raises:
        MissingExtraError: trl, which contains the templates, is not installed.
        ValueError: an unknown template.
    """
    check_choice("template", template, tuple(CHAT_TEMPLATES))
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    dialect = CHAT_TEMPLATES[template]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dialect.special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([*_CORPUS, *more_text], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=dialect.bos,
        eos_token=dialect.end_of_turn,
        pad_token=dialect.special_tokens[0],
    )
    tokenizer.chat_template = _template_text(dialect.template)
    return tokenizer


def _template_text(name: str) -> str:
    # The templates are read from the installed trl without importing it: its import takes seconds.
    spec = find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("quickstart", "trl")
    return (Path(spec.submodule_search_locations[0]) / "chat_templates" / name).read_text(encoding="utf-8")


def tiny_model(
    architecture: str = "qwen2",
    *,
    vocab_size: int,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    tie_word_embeddings: bool = False,
    seed: int = 0,
) -> Any:
    """Make a randomly initialised Qwen2 ("qwen2") or Llama ("llama") in float32; the global random state is kept.

    Raises:
        ValueError: an unknown architecture.
    """
    check_choice("architecture", architecture, ("qwen2", "llama"))
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    config_class = {"qwen2": Qwen2Config, "llama": LlamaConfig}[architecture]
    config = config_class(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=4096,
        # Five times the usual: otherwise a model this small would predict the same in every context.
        initializer_range=0.1,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
