"""A run of the trainer in a process of its own, for tests that kill it: killed_run.py OUTPUT_DIR KIND."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import save_file
from sampling import multinomial
from trainer.live_run import house_pairs, trainer

from composer_replication.channels.hint_distillation import HintGate
from composer_replication.envs.house_style import house_customs
from composer_replication.envs.house_style.customs import EFFECT_OF_TOOL
from composer_replication.trainer.checkpoint import last_complete_checkpoint

# Two optimiser steps of two micro-batches from each generation, and an epoch per generation: every other checkpoint
# lies between a generation and its use, and the run goes on into a third epoch.
ARGUMENTS = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "max_tool_calling_iterations": 1,
    "logging_steps": 2,
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
}

# Every pair stands there in both directions: whatever is learned, the policy comes to prefer half of them.
PAIRS = [
    pair for one in house_pairs(3) for pair in (one, {**one, "chosen": one["rejected"], "rejected": one["chosen"]})
]
CUSTOMS = house_customs()


def hint(kind: str, meta: Mapping[str, Any]) -> str | None:
    """One text for each effect: a turn has as many foreign hints as other effects were asked for."""
    effect = EFFECT_OF_TOOL.get(meta.get("tool_name", ""))
    return None if effect is None else f"Call `{CUSTOMS[effect]}`."


def main(output_dir: str, kind: str) -> None:
    torch.set_num_threads(1)
    torch.multinomial = multinomial
    options: dict[str, Any] = {
        "sdpo_wrapper": "taid",
        # The first generation has too few foreign hints, at most one for each of 16 calls: a run is killed while it
        # collects them.
        "hint_generator": hint,
        "hint_gate": HintGate(min_gap=0.0, drop_conflicts=False, calibrate=17, percentile=0.01),
        "alpha_schedule": "linear",
        "importance_clip": 2.0,
        "gradient_share_steps": 2,
        "kl_in_advantage": 0.01,
        "refresh_pairs_every": 1,
        "refresh_margin": 1e-3,
        "replay_dataset": PAIRS,
    }
    arguments = dict(ARGUMENTS)
    if kind == "two":
        arguments |= {"max_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2, "ddp_backend": "gloo"}
    if kind == "lora":
        options["peft_config"] = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1)
        options["rollout_loop"] = "cached"
    run = trainer(Path(output_dir), args=arguments, tasks=8, **options)
    found = last_complete_checkpoint(output_dir)
    run.train(resume_from_checkpoint=True if found is not None else None)
    run.save_model(str(Path(output_dir, "final")))
    # Every process has its own copy of the weights; they had better be the same.
    own = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    save_file(own, Path(output_dir, f"process-{run.accelerator.process_index}.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
