"""Train the laboratory model again and write its checkpoint. It takes a quarter of an hour on one core:

    python -m composer_replication.laboratory.build

The training is supervised, on the lessons of house style (`envs/house_style/lessons.py`), each in a random house. So
the model learns the form of calls, to follow hints and errors, and to stop; of tools it only learns that there are
several. Words and requests are those of all splits, mixed: they stand for the language that a larger model knows.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

from composer_replication.envs.contract import Lesson, schemas_of
from composer_replication.envs.house_style.customs import EFFECTS
from composer_replication.envs.house_style.environment import HouseStyle
from composer_replication.envs.house_style.lessons import lessons
from composer_replication.envs.house_style.tasks import make_tasks
from composer_replication.envs.house_style.words import WORDS, Words
from composer_replication.laboratory import CHECKPOINT
from composer_replication.laboratory.chances import pass_chance
from composer_replication.laboratory.tokenizer import VOCABULARY, WHOLE, train_tokenizer
from composer_replication.rendering import render_conversation

LESSONS, ROWS = 8_000, 32
CALLS = (1, 1, 2, 2, 3)
LOOKING_BACK, SHARPNESS = 3, 4.5


class Phase(NamedTuple):
    """A part of the training; `is_whole`: tools are defined in the prompt, and only right turns carry loss."""

    steps: int
    learning_rate: float
    is_whole: bool


# First without the definitions of the tools, which are the same in all lessons and would double their length; and with
# a loss on every token, because results and errors repeat names too, and copying is what takes longest to learn.
PHASES = (Phase(700, 3e-3, False), Phase(500, 2e-3, True))


CARD_TASKS, CARD_SEED, CARD_HOUSES = 64, 1, (0, 1, 2)
CARD = """---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# The laboratory model of composer-replication

A Qwen2 of {parameters:,} parameters ({layers} layers, hidden size {hidden}, vocabulary {vocabulary}, float32) for tests
and experiments on a CPU. It makes the tool calls of the environment `house_style`, follows hints and errors, and says
"Done." after the last call. It does not know which of several synonymous tools a house takes: that is what is left to
learn. It is of no other use.

It was trained from random weights on generated conversations alone, each in a random house. Their words and phrasings
are those of all splits, mixed: they stand for the language that a larger model knows. What a house takes cannot be
learned from them.

`python -m composer_replication.laboratory.build` trains it again, and writes this page. Figures differ a little between
kinds of CPUs.

Probability of solving a held-out task at the first attempt ({tasks} tasks in each of the houses {houses}; no sampling):

| calls | without hints | with a hint before each call |
|---|---|---|
{table}
"""


class Row(NamedTuple):
    """A lesson as token ids, and whether the loss applies to each."""

    ids: list[int]
    learned: list[bool]


def build(folder: Path = CHECKPOINT, *, seed: int = 0, phases: Sequence[Phase] = PHASES) -> None:
    """Train tokenizer and model, and write them to a folder."""
    numbers = random.Random(seed)
    taught = list(islice(lessons(numbers, all_words(), calls=CALLS), LESSONS))
    tools = schemas_of(HouseStyle())
    tokenizer = train_tokenizer(_texts(taught[:2000], tools))
    model = untaught_model(tokenizer, seed)
    words = " ".join((*all_words().stems, *all_words().words))
    choices = torch.tensor(sorted(set(tokenizer(words)["input_ids"])))
    for phase in phases:
        of_phase = taught[: phase.steps * ROWS]
        rows = [_row(tokenizer, lesson, tools if phase.is_whole else None) for lesson in track(of_phase, "rendering")]
        teach(model, rows, numbers, phase, tokenizer.pad_token_id, choices)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(_card(model.eval(), tokenizer), encoding="utf-8")


def untaught_model(tokenizer: Any, seed: int) -> Any:
    """Make the random model. Some heads of its first layer begin by looking back: see `_look_back`."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            initializer_range=0.05,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    for head in range(LOOKING_BACK):
        _look_back(model, head, head + 1)
    return model


def _look_back(model: Any, head: int, places: int) -> None:
    """Make a head of the first layer attend to the token so many places before, whatever the tokens are.

    To copy a name, a model must know which token came before another. To find that out takes a small model most of its
    training; with this beginning it learns to copy within a few hundred steps.
    """
    attention, frequencies = model.model.layers[0].self_attn, model.model.rotary_emb.inv_freq
    size = 2 * len(frequencies)
    own = slice(head * size, (head + 1) * size)
    with torch.no_grad():
        for projection, angles in ((attention.q_proj, 0 * frequencies), (attention.k_proj, places * frequencies)):
            projection.weight[own] = 0
            # Rotary positions turn the key of a token `places` back by just as much: there it equals the query.
            projection.bias[own] = SHARPNESS * torch.cat([angles.cos(), angles.sin()])


def _card(model: Any, tokenizer: Any) -> str:
    """The model card, with figures of this model."""
    config, parameters = model.config, sum(parameter.numel() for parameter in model.parameters())
    lines = []
    for calls in (1, 2, 3):
        tasks = make_tasks("held_out", CARD_TASKS, seed=CARD_SEED, calls=calls)
        plain, hinted = (
            statistics.fmean(pass_chance(model, tokenizer, tasks, house, hinted=hinted) for house in CARD_HOUSES)
            for hinted in (False, True)
        )
        lines.append(f"| {calls} | {100 * plain:.1f} % | {100 * hinted:.1f} % |")
    return CARD.format(
        parameters=parameters,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        tasks=CARD_TASKS,
        houses=", ".join(map(str, CARD_HOUSES)),
        table="\n".join(lines),
    )


def all_words() -> Words:
    """The words and requests of all splits: the language of the lessons."""
    splits = WORDS.values()
    return Words(
        stems=tuple(stem for words in splits for stem in words.stems),
        endings=tuple(ending for words in splits for ending in words.endings),
        words=tuple(word for words in splits for word in words.words),
        requests={name: tuple(one for words in splits for one in words.requests[name]) for name in EFFECTS},
        joints=tuple(joint for words in splits for joint in words.joints),
    )


def _texts(taught: Sequence[Lesson], tools: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What the tokenizer is trained on: lessons between the frames, which are tokens anyway."""
    blank = train_tokenizer([])
    frames = re.compile("|".join(map(re.escape, sorted(WHOLE, key=len, reverse=True))))
    for number, lesson in enumerate(taught):
        text = blank.apply_chat_template(lesson.messages, tools=tools if number % 100 == 0 else None, tokenize=False)
        yield from frames.split(text)


def _row(tokenizer: Any, lesson: Lesson, tools: Sequence[dict[str, Any]] | None) -> Row:
    rendered = render_conversation(tokenizer, lesson.messages, tools=tools)
    if tools is None:
        return Row(rendered.ids, [True] * len(rendered.ids))
    learned = [False] * len(rendered.ids)
    for turn in rendered.turns:
        if turn.message in lesson.learned:
            learned[turn.start : turn.stop] = [True] * (turn.stop - turn.start)
    return Row(rendered.ids, learned)


def _copying_loss(model: Any, choices: torch.Tensor) -> torch.Tensor:
    """The loss of repeating random tokens: names are copied, and lessons alone teach that slowly."""
    length, between = (int(torch.randint(low, 40, ())) for low in (8, 1))
    first, other = (choices[torch.randint(len(choices), (ROWS, size))] for size in (length, between))
    ids = torch.cat([first, other, first], 1)
    hidden = model.model(ids).last_hidden_state[:, -length:-1]
    return cross_entropy(model.lm_head(hidden).flatten(0, 1), ids[:, 1 - length :].flatten())


def teach(
    model: Any, rows: Sequence[Row], numbers: random.Random, phase: Phase, pad: int, choices: torch.Tensor
) -> None:
    """Train a model on rows that begin alike: what they share is computed once per step."""
    first, last = min(row.ids for row in rows), max(row.ids for row in rows)
    shared = next(place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, phase.learning_rate, total_steps=phase.steps, pct_start=0.1
    )
    prefix = torch.tensor([first[:shared]])
    by_length = sorted(rows, key=lambda row: len(row.ids))
    for _ in track(range(phase.steps), "training"):
        # Rows of about the same length: little is computed for padding.
        start = numbers.randrange(len(rows) - ROWS)
        drawn = by_length[start : start + ROWS]
        width = max(len(row.ids) for row in drawn) - shared
        ids = torch.tensor([row.ids[shared:] + [pad] * (width + shared - len(row.ids)) for row in drawn])
        # Position t predicts token t + 1.
        learned = torch.tensor([row.learned[shared + 1 :] + [False] * (width + shared - len(row.ids)) for row in drawn])
        cache = model(prefix, use_cache=True).past_key_values
        for layer in cache.layers:
            layer.keys, layer.values = (part.expand(ROWS, -1, -1, -1) for part in (layer.keys, layer.values))
        hidden = model.model(ids, past_key_values=cache, use_cache=True).last_hidden_state[:, :-1]
        loss = cross_entropy(model.lm_head(hidden[learned]), ids[:, 1:][learned])
        loss = loss if phase.is_whole else loss + _copying_loss(model, choices)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    build()
