"""Rollouts per second: the trainer's loop with kept caches against the plainest batched loop, and against TRL's.

All generate the same tokens with the same model: a draw is made and paid for, and then the likeliest token is taken.

plain: reads the prompts, draws until every row has ended its turn, reads the tools' answers, and goes on; one cache,
whose rows all stay to the end. Of prompts, tools and answers it is given the ids. It parses nothing and calls nothing.
kept caches: `ComposerReplicationTrainer._generate` with rollout_loop="cached": everything that rollouts need.
TRL: the same with rollout_loop="trl".

Contestants take turns in one process, and the ratio is the median over the rounds. One thread; seconds are those of the
process, which busy ones beside it do not lengthen.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from datasets import Dataset
from reporting import BenchmarkError, judged, machine, main, targets_table
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import DynamicCache
from transformers.utils import logging
from trl import GRPOConfig

from composer_replication.envs.house_style import HouseStyle, make_tasks
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer

PROMPTS, QUICK_PROMPTS, GENERATIONS = 16, 4, 4
LENGTH, ROUNDS = 256, 2
REPEATS, QUICK_REPEATS = 9, 2
CONTESTANTS = ("plain", "kept caches", "TRL")


@dataclass(frozen=True)
class Blocks:
    """A rollout as the plain loop needs it: what it reads (the prompt, then tools' answers) and what it says."""

    read: list[list[int]]
    said: list[list[int]]


def plain_loop(model: Any, rollouts: Sequence[Blocks]) -> None:
    """Generate tokens that are known."""
    rows = len(rollouts)
    cache, mask = DynamicCache(config=model.config), torch.zeros(rows, 0, dtype=torch.long)

    def read(blocks: Sequence[Sequence[int]]) -> torch.Tensor:
        nonlocal mask
        width = max(map(len, blocks))
        ids = torch.tensor([[0] * (width - len(block)) + list(block) for block in blocks])
        own = torch.tensor([[0] * (width - len(block)) + [1] * len(block) for block in blocks])
        mask = torch.cat([mask, own], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -width:]
        output = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    with torch.no_grad():
        for turn in range(max(len(rollout.said) for rollout in rollouts)):
            logits = read([rollout.read[turn] if turn < len(rollout.said) else [] for rollout in rollouts])
            said = [rollout.said[turn] if turn < len(rollout.said) else [] for rollout in rollouts]
            for step in range(max(map(len, said))):
                torch.multinomial(logits.float().softmax(-1), num_samples=1)
                logits = read([ids[step : step + 1] for ids in said])


def draw_the_likeliest(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """In place of `torch.multinomial`: the same work, and always the same token."""

    def drawn(probabilities: torch.Tensor, num_samples: int, **options: Any) -> torch.Tensor:
        draw(probabilities, num_samples, **options)
        return probabilities.argmax(-1, keepdim=True)

    return drawn


def trainer(folder: str, loop: str, tasks: Sequence[dict[str, Any]]) -> Any:
    """A trainer in house style whose `_generate` notes its time and its rollouts."""
    made: Any = ComposerReplicationTrainer(
        model=laboratory_model(),
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=len(tasks) * GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=LENGTH,
            max_tool_calling_iterations=ROUNDS,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(list(tasks)),
        processing_class=laboratory_tokenizer(),
        environment_factory=HouseStyle,
        alpha_sdpo=0.0,
        beta_replay=0.0,
        rollout_loop=loop,
    )
    generate = made._generate

    def timed(prompts: list[Any]) -> Any:
        start = time.process_time()
        result = generate(prompts)
        made.seconds = time.process_time() - start
        made.rollouts = list(zip(*result[:3], strict=True))
        return result

    made._generate = timed
    return made


def blocks(prompt_ids: list[int], completion_ids: list[int], generated: list[int]) -> Blocks:
    """Take a rollout apart. The last token of a turn is read with what follows it."""
    read, said, position = [list(prompt_ids)], [], 0
    for flag, group in groupby(generated):
        start, position = position, position + sum(1 for _ in group)
        (said if flag else read).append(completion_ids[start:position])
    return Blocks(read[: len(said)], said)


def report(quick: bool, repeats: int) -> dict[str, Any]:
    """Let the contestants take turns."""
    tasks = make_tasks("train", QUICK_PROMPTS if quick else PROMPTS, calls=(1, 2))
    rows = [task for task in tasks for _ in range(GENERATIONS)]
    loops = {"kept caches": "cached", "TRL": "trl"}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: trainer(folder, loop, tasks) for name, loop in loops.items()}
    model = laboratory_model()
    rollouts: list[Blocks] = []

    def run(contestant: str) -> float:
        if contestant == "plain":
            start = time.process_time()
            plain_loop(model, rollouts)
            return time.process_time() - start
        trainers[contestant]._generate_and_score_completions(rows)
        seconds: float = trainers[contestant].seconds
        return seconds

    for contestant in ("TRL", "kept caches"):
        run(contestant)
    if trainers["TRL"].rollouts != trainers["kept caches"].rollouts:
        raise BenchmarkError("the two loops of the trainer generated different tokens")
    rollouts += [blocks(*rollout) for rollout in trainers["TRL"].rollouts]
    run("plain")
    console = Console(stderr=True)
    rounds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for _ in track(range(repeats), "rollouts", console=console, disable=not console.is_terminal):
        for name in CONTESTANTS:
            rounds[name].append(run(name))
    results = {
        name: {
            "rollouts_per_second": len(rows) / statistics.median(seconds),
            "vs_plain": statistics.median(plain / own for plain, own in zip(rounds["plain"], seconds, strict=True)),
            "seconds": seconds,
        }
        for name, seconds in rounds.items()
    }
    turns = [ids for rollout in rollouts for ids in rollout.said]
    return {
        "benchmark": "rollouts",
        "machine": {**machine("torch", "transformers", "trl"), "threads": torch.get_num_threads()},
        "shape": {
            "parameters": sum(one.numel() for one in model.parameters()),
            "rollouts": len(rows),
            "prompts": len(tasks),
            "prompt_tokens": statistics.mean(len(rollout.read[0]) for rollout in rollouts),
            "turns": len(turns) / len(rows),
            "tokens_per_turn": statistics.mean(map(len, turns)),
        },
        "results": results,
        "targets": [judged("rollouts_vs_plain_loop", results["kept caches"]["vs_plain"], ">=0.7")],
    }


def show(made: dict[str, Any]) -> None:
    """Print a row for every contestant."""
    table = Table("contestant", "rollouts per second", "against plain", "seconds of each round", title="rollouts")
    for name, figures in made["results"].items():
        each = " ".join(f"{one:.2f}" for one in figures["seconds"])
        table.add_row(name, f"{figures['rollouts_per_second']:.1f}", f"{figures['vs_plain']:.2f}", each)
    described = (f"{name} {value}" for part in ("machine", "shape") for name, value in made[part].items())
    Console().print(", ".join(described), table, targets_table(made), sep="\n", highlight=False)


def make_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the report, without what libraries have to say."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    torch.multinomial = draw_the_likeliest(torch.multinomial)
    return report(arguments.quick, arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS))


if __name__ == "__main__":
    main(make_report, show=show)
