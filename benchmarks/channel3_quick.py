"""What channels 2 and 3 add to GRPO in a house: the laboratory model, single-call tasks, real rollouts, two seeds.

Every arm trains the same model on the same tasks and pairs through the real trainer. The house's errors say which call
it takes (channel 2), the pairs show its own call against one that it does not take (channel 3). Reported for each seed,
block of steps by block: the mean reward, and by how many nats the chosen responses have become likelier than they were
at the start, on average; and the step at which the mean reward of a block's length first reaches that of GRPO's last
block.

One thread, no timing. A full run trains sixteen models, forty steps each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from reporting import judged, machine, main, targets_table
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig

from composer_replication.envs.house_style import HouseStyle, make_tasks
from composer_replication.envs.house_style.lessons import preference_pairs
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer
from composer_replication.trainer.pairs import given_pairs
from composer_replication.trainer.preference_rows import preference_rows
from composer_replication.trainer.reference_logprobs import pair_logprobs

ARMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "dpo .05": {"beta_replay": 0.05},
    "dpo .5": {"beta_replay": 0.5},
    "dpo + anchor .05": {"beta_replay": 0.05, "replay_nll_weight": 1.0},
    "dpo + anchor .5": {"beta_replay": 0.5, "replay_nll_weight": 1.0},
    "anchor alone .5": {"beta_replay": 0.5, "dpo_variant": "nll"},
    "sdpo .5": {"alpha_sdpo": 0.5},
    "sdpo + dpo + anchor .5": {"alpha_sdpo": 0.5, "beta_replay": 0.5, "replay_nll_weight": 1.0},
}
STEPS, BLOCK, SEEDS = 40, 8, 2
QUICK_STEPS, QUICK_BLOCK = 2, 1
TASKS = PAIRS = 64
ROLLOUTS = 16


def report(quick: bool, seeds: int) -> dict[str, Any]:
    """Train every arm with every seed."""
    steps, block = (QUICK_STEPS, QUICK_BLOCK) if quick else (STEPS, BLOCK)
    runs = [(arm, seed) for seed in range(1, seeds + 1) for arm in ARMS]
    console = Console(stderr=True)
    measured: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for arm, seed in track(runs, "channel3_quick", console=console, disable=not console.is_terminal):
        measured[arm].append(trained(ARMS[arm], seed, steps, block))
    for arm in ARMS:
        for run, plain in zip(measured[arm], measured["grpo"], strict=True):
            run["steps_to_grpo"] = steps_to(plain["final_reward"], run["rewards"], block)
    results = {arm: {**means(runs), "seeds": runs} for arm, runs in measured.items()}
    anchored, reward = results["dpo + anchor .5"], {arm: figures["mean_reward"] for arm, figures in results.items()}
    return {
        "benchmark": "channel3_quick",
        "machine": {**machine("torch", "trl"), "threads": torch.get_num_threads()},
        "shape": {"steps": steps, "rollouts": ROLLOUTS, "pairs": PAIRS, "seeds": seeds, "block": block},
        "results": results,
        "targets": [
            judged("anchor_reward_vs_dpo", reward["dpo + anchor .5"] / reward["dpo .5"], ">=1.1"),
            judged("anchor_reward_vs_grpo", reward["dpo + anchor .5"] / reward["grpo"], ">=1.25"),
            judged("anchor_steps_to_grpo", anchored["steps_to_grpo"] / steps, "<=0.6"),
            judged("anchor_chosen_reward", anchored["chosen_reward"], ">=0"),
            judged("sdpo_reward_vs_grpo", reward["sdpo .5"] / reward["grpo"], ">=1.15"),
        ],
    }


def trained(options: Mapping[str, Any], seed: int, steps: int, block: int) -> dict[str, Any]:
    """Train one arm, and score the pairs after each block."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=ROLLOUTS,
            num_generations=4,
            max_completion_length=64,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=seed,
        )
        trainer = ComposerReplicationTrainer(
            model=laboratory_model(),
            args=arguments,
            train_dataset=Dataset.from_list(make_tasks("train", TASKS, calls=1)),
            processing_class=laboratory_tokenizer(),
            environment_factory=HouseStyle,
            replay_dataset=_pairs(),
            gradient_share_steps=0,
            **{"alpha_sdpo": 0.0, "beta_replay": 0.0, **options},
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(gains := ChosenGains(trainer.model, block))
        trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    return {
        "rewards": rewards,
        "blocks": [statistics.mean(rewards[start : start + block]) for start in range(0, steps, block)],
        "mean_reward": statistics.mean(rewards),
        "final_reward": statistics.mean(rewards[-block:]),
        "chosen_rewards": gains.gains,
        "chosen_reward": gains.gains[-1],
    }


def _pairs() -> list[dict[str, Any]]:
    return preference_pairs(make_tasks("train", PAIRS, seed=5, calls=1))


class ChosenGains(TrainerCallback):  # type: ignore[misc]
    """Scores the pairs now and after each block: by how many nats the chosen responses have become likelier."""

    def __init__(self, model: Any, block: int) -> None:
        self._model, self._block = model, block
        self._tokenizer = laboratory_tokenizer()
        self._rows = preference_rows(self._tokenizer, given_pairs(_pairs()), max_length=2048)
        self._before = self._chosen()
        self.gains: list[float] = []

    def _chosen(self) -> float:
        values_N2 = pair_logprobs(self._model, self._rows, self._tokenizer.pad_token_id, ROLLOUTS, "cpu")
        return values_N2[:, 0].mean().item()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score at the end of a block."""
        if state.global_step % self._block == 0:
            self.gains.append(self._chosen() - self._before)


def steps_to(level: float, rewards: Sequence[float], block: int) -> int:
    """The first step at which the mean reward of the last `block` steps reaches a level; one more than all if none."""
    reached = (end for end in range(block, len(rewards) + 1) if statistics.mean(rewards[end - block : end]) >= level)
    return next(reached, len(rewards) + 1)


def means(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each figure over the seeds."""
    figures = [name for name, value in runs[0].items() if not isinstance(value, list)]
    return {name: statistics.mean(run[name] for run in runs) for name in figures}


def show(made: dict[str, Any]) -> None:
    """Print a row for every arm and seed."""
    table = Table(
        *("arm", "reward by block, seed by seed", "steps to GRPO's end", "chosen − reference by block"),
        title="channel3_quick",
    )
    for arm, figures in made["results"].items():
        seeds = figures["seeds"]
        table.add_row(
            arm,
            "\n".join(" ".join(f"{one:.2f}" for one in run["blocks"]) for run in seeds),
            "\n".join(str(run["steps_to_grpo"]) for run in seeds),
            "\n".join(" ".join(f"{one:+.1f}" for one in run["chosen_rewards"]) for run in seeds),
        )
    described = (f"{name} {value}" for part in ("machine", "shape") for name, value in made[part].items())
    Console().print(", ".join(described), table, targets_table(made), sep="\n", highlight=False)


def make_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the report, without what libraries have to say."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    return report(arguments.quick, arguments.repeats or (1 if arguments.quick else SEEDS))


if __name__ == "__main__":
    main(make_report, show=show)
