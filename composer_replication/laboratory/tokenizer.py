"""The tokenizer of the laboratory model: byte-level BPE trained on its lessons, with a token for each frame of JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from composer_replication.envs.house_style.customs import EFFECT_OF_TOOL
from composer_replication.envs.house_style.words import WORDS
from composer_replication.laboratory import CHECKPOINT

VOCABULARY = 1024
_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_VALUE = '": {"type": "string", "description": "A value."}'
# What prompts and calls are made of is a token each: the frames of definitions and calls, which are most of a prompt,
# tools, and endings of file names. What is left are words.
FRAMES = (
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '"}}\n</tool_call>',
    '{"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    f'{_VALUE}, "',
    f"{_VALUE}}}}}}}\n",
    '": "',
    '", "',
)
# How trl reads calls out of what was sampled.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": f"{_START}assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


WHOLE = (*FRAMES, *EFFECT_OF_TOOL, *(ending for words in WORDS.values() for ending in words.endings))


def chat_template() -> str:
    """Return the chat template: ChatML with tools."""
    return (CHECKPOINT / "chat_template.jinja").read_text(encoding="utf-8")


def train_tokenizer(texts: Iterable[str]) -> Any:
    """Train the tokenizer on rendered lessons."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(WHOLE),
        special_tokens=[_PAD, _START, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([AddedToken(whole, normalized=False) for whole in WHOLE])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=_END, pad_token=_PAD)
    tokenizer.chat_template = chat_template()
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer
