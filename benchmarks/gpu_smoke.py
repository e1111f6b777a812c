"""One training step with all three channels in bf16 on a GPU: how long it takes and how much memory it needs.

    make gpu-smoke
    python benchmarks/gpu_smoke.py --model Qwen/Qwen2.5-0.5B-Instruct
    python benchmarks/gpu_smoke.py --device cpu --random --quick     # does the script itself run?

`ComposerReplicationTrainer` with rollouts, an EMA teacher, a hint on every fourth rollout and a preference pair for
every two, beside itself with both weights 0, which is plain GRPO. A reward function gives the hints, so that channel 2
is live whatever the model says. The figures are those of whole optimiser steps, generation included, after one step
that warms up; the further columns say how much of a step was generation, and over how many tokens the channels went.

All weights are in bfloat16, which is leaner than what `composer-replication train` allows for full training.

It was written on a machine without a GPU and has been run there with `--device cpu` only. On CUDA it runs unchanged:
no device is named anywhere but in the choice below.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from reporting import BenchmarkError, in_child, machine, main, medians, other_cpu_seconds, resident_bytes

WEIGHTS = {"three_channels": (0.1, 0.05), "plain_grpo": (0.0, 0.0)}
CHANNELS = ("grpo", "sdpo", "replay")
HINT = "Answer in one short sentence, and name the file that you mean."
# Some virtual machines announce AMX and then kill the process that uses it; only the check on a CPU meets it.
_CPU_ENVIRONMENT = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}


@dataclass(frozen=True)
class Shape:
    """Sizes of the batch, and of the model if it is a random one."""

    rollouts: int
    group: int
    prompt_words: int
    completion_tokens: int
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int


FULL = Shape(16, 8, 200, 512, vocabulary=151_936, hidden=896, intermediate=4864, layers=24, heads=14)
QUICK = Shape(4, 2, 20, 24, vocabulary=1024, hidden=64, intermediate=128, layers=2, heads=4)


def load(arguments: argparse.Namespace, shape: Shape) -> tuple[Any, Any]:
    """The model in bf16 and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    from composer_replication._tiny import load_smollm2, tiny_tokenizer

    if arguments.random:
        config = Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), tiny_tokenizer("qwen2_5")
    if arguments.model == "smollm2":
        model, tokenizer = load_smollm2()
        return model.to(torch.bfloat16), tokenizer
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
    return model, AutoTokenizer.from_pretrained(arguments.model)


def variety(completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **columns: Any) -> list[float]:
    """A reward that differs within any group, and a hint on every fourth rollout."""
    log_extra("hint", [HINT if row % 4 == 0 else None for row in range(len(completion_ids))])
    return [len(set(ids)) / len(ids) + row / 100 for row, ids in enumerate(completion_ids)]


def trainer(contestant: str, arguments: argparse.Namespace, shape: Shape, output: Path) -> Any:
    """The trainer for one warm-up step and the timed ones."""
    from datasets import Dataset
    from trl import GRPOConfig

    from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer

    model, tokenizer = load(arguments, shape)
    text = " ".join(f"file_{number % 50}.py is read," for number in range(shape.prompt_words // 3))
    prompts = [[{"role": "user", "content": f"Task {number}: {text} what next?"}] for number in range(64)]
    pairs = [
        {
            "prompt": prompt,
            "chosen": [{"role": "assistant", "content": f"Read the tests of file_{number}.py. " * 6}],
            "rejected": [{"role": "assistant", "content": f"Delete file_{number}.py. " * 6}],
        }
        for number, prompt in enumerate(prompts)
    ]
    alpha_sdpo, beta_replay = WEIGHTS[contestant]
    settings = GRPOConfig(
        output_dir=str(output),
        max_steps=1 + arguments.steps,
        per_device_train_batch_size=shape.rollouts,
        num_generations=shape.group,
        max_completion_length=shape.completion_tokens,
        learning_rate=1e-6,
        logging_steps=1,
        bf16=True,
        use_cpu=arguments.device == "cpu",
        gradient_checkpointing=arguments.gradient_checkpointing,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    return ComposerReplicationTrainer(
        model=model,
        args=settings,
        reward_funcs=variety,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
        alpha_sdpo=alpha_sdpo,
        beta_replay=beta_replay,
        replay_dataset=pairs,
        hint_gate=None,
        gradient_share_steps=0,
    )


def measure(contestant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """In the child: train, and time every step after the first."""
    from transformers import TrainerCallback

    on_cuda = arguments.device == "cuda"

    def clock() -> float:
        if on_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    begun: list[float] = []
    ended: list[float] = []
    generating: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            begun.append(clock())
            generating.append(0.0)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended.append(clock())
            if on_cuda and len(ended) == 1:
                torch.cuda.reset_peak_memory_stats()

    with tempfile.TemporaryDirectory() as folder:
        run = trainer(contestant, arguments, QUICK if arguments.quick else FULL, Path(folder))
        generate = run._generate_and_score_completions

        def timed(inputs: Any) -> Any:
            start = clock()
            output = generate(inputs)
            generating[-1] += clock() - start
            return output

        run._generate_and_score_completions = timed
        run.add_callback(Clock())
        other_start = other_cpu_seconds()
        run.train()
        elsewhere = (other_cpu_seconds() - other_start) / (ended[-1] - begun[0])
    logs = [entry for entry in run.state.log_history if "grad_norm" in entry][1:]
    tokens = {
        f"{channel}_tokens": statistics.mean(entry[f"channels/{channel}/active_tokens"] for entry in logs)
        for channel in CHANNELS
        if all(f"channels/{channel}/active_tokens" in entry for entry in logs)
    }
    if contestant == "three_channels" and not all(tokens.get(f"{channel}_tokens") for channel in CHANNELS):
        raise BenchmarkError(f"a channel was not live, so the step is not the one to measure: {tokens}")
    if not all(torch.isfinite(torch.tensor(float(entry["grad_norm"]))) for entry in logs):
        raise BenchmarkError(f"gradients are not finite: {[entry['grad_norm'] for entry in logs]}")
    peak = torch.cuda.max_memory_allocated() if on_cuda else resident_bytes("VmHWM")
    steps = [{"seconds": stop - start} for start, stop in zip(begun[1:], ended[1:], strict=True)]
    return {
        "seconds": statistics.median(step["seconds"] for step in steps),
        "peak_bytes": peak,
        "busy_elsewhere": elsewhere,
        "generation_seconds": statistics.median(generating[1:]),
        **tokens,
        "repeats": steps,
    }


def measured_apart(contestant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A contestant's figures from processes of its own: medians over all their steps, the highest of their peaks."""
    options = ["--device", arguments.device, "--model", arguments.model, "--steps", str(arguments.steps)]
    switches = ("random", "quick", "gradient_checkpointing")
    options += [f"--{name.replace('_', '-')}" for name in switches if getattr(arguments, name)]
    environment = {**_CPU_ENVIRONMENT, **os.environ} if arguments.device == "cpu" else {}
    runs = [in_child(contestant, options, environment) for _ in range(arguments.repeats or 1)]
    steps = [step for run in runs for step in run["repeats"]]
    return {
        **medians(runs, "repeats"),
        "seconds": statistics.median(step["seconds"] for step in steps),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "repeats": steps,
    }


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both contestants; an error if there is no GPU."""
    shape = QUICK if arguments.quick else FULL
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError(
            "no CUDA device, or a torch built without CUDA; --device cpu --random --quick checks the script itself"
        )
    batch = {name: asdict(shape)[name] for name in ("rollouts", "group", "prompt_words", "completion_tokens")}
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "none, this is a check of the script"
    return {
        "benchmark": "gpu_smoke",
        "machine": {**machine("torch", "trl", "transformers"), "gpu": device},
        "shape": {"model": "random", **asdict(shape)} if arguments.random else {"model": arguments.model, **batch},
        "results": {contestant: measured_apart(contestant, arguments) for contestant in WEIGHTS},
        "columns": ["generation_seconds", *(f"{channel}_tokens" for channel in CHANNELS)],
        "targets": [],
    }


if __name__ == "__main__":
    options: dict[str, dict[str, Any]] = {
        "--model": {"default": "smollm2", "help": "a hub id, a folder, or smollm2 (bundled)"},
        "--random": {"action": "store_true", "help": "random weights of the size of Qwen2.5-0.5B instead"},
        "--device": {"choices": ("cuda", "cpu"), "default": "cuda"},
        "--steps": {"type": int, "default": 5, "help": "timed optimiser steps in each process"},
        "--gradient-checkpointing": {"action": "store_true"},
    }
    main(report, measure=measure, options=options)
