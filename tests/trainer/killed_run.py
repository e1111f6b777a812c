"""A run of the trainer in a process of its own, for tests that kill it: killed_run.py MODEL_DIR OUTPUT_DIR KIND."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

torch.set_num_threads(1)

from live_run import trainer
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from composer_replication.trainer.checkpoint import last_complete_checkpoint

# Two optimiser steps of two micro-batches from each generation, and an epoch per generation: every other checkpoint
# lies between a generation and its use, and the run goes on into a third epoch.
ARGUMENTS = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
}


def main(model_dir: str, output_dir: str, kind: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    options = {"sdpo_wrapper": "taid", "hint_gate": None, "gradient_share_steps": 2, "kl_in_advantage": 0.01}
    if kind == "lora":
        options["peft_config"] = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1)
    run = trainer(Path(output_dir), model=model, args=ARGUMENTS, tasks=8, **options)
    found = last_complete_checkpoint(output_dir)
    run.train(resume_from_checkpoint=True if found is not None else None)
    run.save_model(str(Path(output_dir, "final")))


if __name__ == "__main__":
    main(*sys.argv[1:])
