"""The warm-up: a short supervised training on an environment's lessons, before a model's first rollouts.

A model that never makes a call that can be read earns no reward, and reinforcement learning has nothing to go by. The
lessons teach the form of calls; `TraceTrainer` trains on them with channel 1 alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainingArguments, set_seed

from composer_replication._arguments import check_count, check_positive
from composer_replication._optional import require
from composer_replication.envs.contract import Lesson, schemas_of
from composer_replication.envs.registry import built_in
from composer_replication.run.launch import LogCallback, OnLog
from composer_replication.run.model_loading import check_model, check_tools, load_model, load_tokenizer, lora_config
from composer_replication.run.sections import ModelSection
from composer_replication.traces import TraceExample

LORA_LEARNING_RATE, LEARNING_RATE = 1e-3, 1e-4
"""What a warm-up takes with adapters, and for every weight."""
_LONGEST = 4096


def warm_up(
    model: ModelSection,
    environment: str,
    output: Path,
    *,
    steps: int,
    batch_size: int = 1,
    learning_rate: float | None = None,
    seed: int = 0,
    on_log: OnLog | None = None,
) -> list[float]:
    """Train a model on an environment's lessons, each of them once, and write it as an ordinary checkpoint.

    Adapters are merged into the weights. Returns the loss of every step; the same seed gives the same.

    Args:
        model: which one, with or without adapters.
        environment: name of an environment of the package that has lessons.
        output: a folder that does not exist or is empty; written at the end, with tokenizer and chat template.
        steps: of the optimiser.
        batch_size: lessons per step.
        learning_rate: the highest, after a tenth of the steps; None: see `LORA_LEARNING_RATE`.
        seed: of lessons and adapters.
        on_log: called after every step.

    Raises:
        ValueError: the environment has no lessons, the output is not empty, a number is out of range, or the model
            cannot be loaded or has a chat template without tools.
        MissingExtraError: what training needs is not installed.
    """
    check_count("steps", steps)
    check_count("batch_size", batch_size)
    check_positive("learning_rate", learning_rate)
    taught = built_in(environment)
    if taught.make_lessons is None:
        raise ValueError(f"the environment {environment} has no lessons: train in it without a warm-up")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} is not an empty folder: give another one")
    require("accelerate", "train")
    from composer_replication.trainer.data_collator import CollatorConfig
    from composer_replication.trainer.trace_trainer import TraceTrainer

    tokenizer = load_tokenizer(model)
    check_tools(tokenizer, environment)
    set_seed(seed)  # adapters begin at random
    trained = load_model(model)
    check_model(trained, tokenizer, model)
    longest = getattr(trained.config.get_text_config(), "max_position_embeddings", None) or _LONGEST
    adapters = lora_config(model)
    if adapters is not None:
        trained = require("peft", "train").get_peft_model(trained, adapters)
    lessons = taught.make_lessons(steps * batch_size, seed=seed)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = TraceTrainer(
            trained,
            TrainingArguments(
                output_dir=scratch,
                max_steps=steps,
                per_device_train_batch_size=batch_size,
                learning_rate=learning_rate or (LEARNING_RATE if adapters is None else LORA_LEARNING_RATE),
                lr_scheduler_type="cosine",
                warmup_steps=0.1,
                logging_steps=1,
                save_strategy="no",
                seed=seed,
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            list(_examples(lessons, schemas_of(taught.environment()))),
            tokenizer,
            collator=CollatorConfig(max_seq_len=longest, enable_sdpo=False, enable_replay_dpo=False),
            callbacks=[LogCallback(on_log)] if on_log is not None else None,
            alpha_sdpo=0.0,
            beta_replay=0.0,
        )
        trainer.remove_callback(PrinterCallback)  # the library does not print
        trainer.train()
    done = trained if adapters is None else trained.merge_and_unload()
    done.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return [logged["loss"] for logged in trainer.state.log_history if "loss" in logged]


def _examples(lessons: Sequence[Lesson], tools: list[dict[str, Any]]) -> Iterator[TraceExample]:
    """Lessons as traces; what is not to be learned is marked as a copy, which is context alone."""
    for number, lesson in enumerate(lessons):
        turns = [
            {**message, "repeats": message["role"] == "assistant" and place not in lesson.learned}
            for place, message in enumerate(lesson.messages)
        ]
        yield {"trace_id": f"lesson {number}", "turns": turns, "tools": tools}  # type: ignore[typeddict-item]
