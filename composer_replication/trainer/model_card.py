"""The model card (README.md) of a checkpoint: base, data, channels, settings, versions, and how to load it.

In place of the templates of TRL, transformers and PEFT. It names files and folders without their paths: a card is made
to be shown to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import composer_replication
from composer_replication.trainer.channel_engine import ChannelEngine

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "safetensors")
# By the names of `TrainingArguments` and `GRPOConfig`; those that a trainer does not have are left out.
_SETTINGS = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "seed"),
    *("loss_type", "scale_rewards", "beta", "num_generations", "max_completion_length", "temperature", "epsilon"),
)


@dataclass(frozen=True)
class ModelCard:
    """The content of a card.

    Args:
        title: the heading.
        place: what `from_pretrained` takes: the name of the folder, or the id on the hub.
        base: the model that was trained; a hub id, a folder, or "" if it has no name.
        architecture: its class.
        steps: how far it was trained, in words.
        revision: of the base on the hub.
        is_adapter: whether this is a PEFT adapter, and not a whole model.
        sections: headings, with what there is to say under each; values that are None are left out.
        metadata: more keys for the front matter.
    """

    title: str
    place: str
    base: str
    architecture: str
    steps: str
    revision: str | None = None
    is_adapter: bool = False
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The card as Markdown."""
        lines = ["---", self._front_matter(), "---", "", f"# {self.title}", "", self._summary(), "", *self._loading()]
        for heading, values in self.sections.items():
            lines += ["", f"## {heading}", ""]
            lines += [f"- {name}: {value}" for name, value in values.items() if value is not None]
        return "\n".join(lines) + "\n"

    @property
    def _is_local(self) -> bool:
        return Path(self.base).is_dir()

    def _front_matter(self) -> str:
        from huggingface_hub import ModelCardData

        given = dict(self.metadata)
        tags = given.pop("tags", None) or []
        own = {
            "library_name": "peft" if self.is_adapter else "transformers",
            "pipeline_tag": "text-generation",
            "base_model": None if self._is_local else self.base or None,
            "tags": ["composer-replication", *([tags] if isinstance(tags, str) else tags)],
        }
        text: str = ModelCardData(**{**own, **given}).to_yaml().strip()
        return text

    def _summary(self) -> str:
        if not self.base:
            base = f"a {self.architecture} that was not loaded from a checkpoint"
        elif self._is_local:
            base = f"`{Path(self.base).name}`, a local checkpoint ({self.architecture})"
        else:
            at = f" at revision `{self.revision}`" if self.revision else ""
            base = f"[{self.base}](https://huggingface.co/{self.base}){at} ({self.architecture})"
        what = "A PEFT adapter" if self.is_adapter else "All weights"
        return f"Base model: {base}.\n\n{what}, trained with composer-replication, {self.steps}."

    def _loading(self) -> list[str]:
        loader, imports = "AutoModelForCausalLM", ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
        if self.is_adapter:
            loader = "AutoPeftModelForCausalLM"
            imports = [f"from peft import {loader}", "from transformers import AutoTokenizer"]
        lines = [
            "## How to load it",
            "",
            "```python",
            *imports,
            "",
            f'place = "{self.place}"',
            f"model = {loader}.from_pretrained(place)",
            "tokenizer = AutoTokenizer.from_pretrained(place)  # with the chat template of the training",
            "```",
        ]
        if self.is_adapter and (self._is_local or not self.base):
            lines += [
                "",
                "The base is a folder on the machine of the training. Elsewhere, load the base from where it is:",
                "`PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), place)`.",
            ]
        return lines


def card_of(trainer: Any, place: str, metadata: Mapping[str, Any] | None = None) -> ModelCard:
    """The card of what a trainer of ours saves now, to be loaded from `place`."""
    args, state = trainer.args, trainer.state
    model = trainer.accelerator.unwrap_model(trainer.model)
    adapter: Any = None
    base_model = model
    if hasattr(model, "get_base_model"):
        base_model, adapter = model.get_base_model(), model.peft_config[model.active_adapter]
    settings = {
        "optimizer": _optimizer_name(trainer),
        **{name: getattr(args, name, None) for name in _SETTINGS},
        "learning_rate": _learning_rate(trainer),
        "processes": args.world_size,
        "dtype": base_model.dtype,
        **{name: getattr(adapter, name, None) for name in ("peft_type", "r", "lora_alpha")},
    }
    return ModelCard(
        title=f"{Path(args.output_dir).resolve().name}, step {state.global_step:,}",
        place=place,
        base=(base_model.config._name_or_path if adapter is None else adapter.base_model_name_or_path) or "",
        architecture=type(base_model).__name__,
        steps=f"{state.global_step:,} of {state.max_steps:,} steps" if state.max_steps else "0 steps",
        revision=getattr(adapter, "revision", None),
        is_adapter=adapter is not None,
        sections={
            "Data": trainer.described_data or _data(trainer),
            "Channels": _channels(trainer.channels),
            "Settings": {name: _shown(value) for name, value in settings.items()},
            "Versions": package_versions(),
        },
        metadata=metadata or {},
    )


def name_base_absolutely(model: Any) -> None:
    """Make an adapter name a local base by its absolute path: PEFT looks for it from the working directory."""
    for adapter in getattr(model, "peft_config", {}).values():
        base = adapter.base_model_name_or_path
        if base and Path(base).is_dir():
            adapter.base_model_name_or_path = str(Path(base).resolve())


def package_versions() -> dict[str, str]:
    """The versions of this package and of those that training depends on, as far as they are installed."""
    found = {"composer_replication": composer_replication.__version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _optimizer_name(trainer: Any) -> str:
    settings: Mapping[str, Any] = trainer.optimizer_cls_and_kwargs[1] if trainer.optimizer_cls_and_kwargs else {}
    named = settings.get("name")
    if named or trainer.optimizer is None:
        return str(named or trainer.args.optim)
    return type(getattr(trainer.optimizer, "optimizer", trainer.optimizer)).__name__


def _learning_rate(trainer: Any) -> float:
    """The rate that a schedule starts from."""
    group: Mapping[str, Any] = trainer.optimizer.param_groups[0] if trainer.optimizer is not None else {}
    return float(group.get("initial_lr", group.get("lr", trainer.args.learning_rate)))


def _data(trainer: Any) -> dict[str, Any]:
    """The size of the data and the names of the rewards, from the trainer itself."""
    rows = trainer.train_dataset
    return {
        "training rows": f"{len(rows):,}" if hasattr(rows, "__len__") else "a stream",
        "rewards": ", ".join(getattr(trainer, "reward_func_names", ())) or None,
    }


def _channels(engine: ChannelEngine) -> dict[str, str]:
    """The channels with their weights, and the settings that define them."""
    pairs = "no pairs" if engine.pairs is None else f"{len(engine.pairs):,} pairs"
    hints = engine.settings.sdpo.summary()
    details = {"sdpo": hints, "traces": hints, "replay": f"{engine.settings.replay.summary()}, {pairs}"}
    return {
        channel: "off" if not weight else ", ".join(filter(None, (f"weight {weight:g}", details.get(channel))))
        for channel, weight in engine.weights.items()
    }


def _shown(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
