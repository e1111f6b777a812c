"""A checkpoint as a model and its tokenizer: all weights, or an adapter on its base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from composer_replication._optional import require
from composer_replication.model_places import model_place

_ADAPTER = "adapter_config.json"
_ADAPTER_WEIGHTS = "adapter_model.safetensors"


def load_checkpoint(name: str, dtype: Any) -> tuple[Any, Any]:
    """The model and the tokenizer of a checkpoint; only safetensors, and no code of the model's own.

    Args:
        name: a directory, a hub id, or smollm2. A directory may hold an adapter: its base is loaded too. The tokenizer
            and the chat template are the adapter's own, or else the base's.
        dtype: what `from_pretrained` takes.

    Raises:
        ValueError: there is no such model, or the adapter's base cannot be loaded.
        MissingExtraError: it is an adapter, and PEFT is not installed.
        SmolLM2NotInstalledError: see `smollm2_checkpoint`.
    """
    place = model_place(name)
    folder = Path(place)
    if (folder / _ADAPTER).is_file():
        return _load_adapter(folder, dtype)
    if folder.is_dir() and not (folder / "config.json").is_file():
        saved = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name))
        hint = f"; it is a training run: give one of its checkpoints, such as {saved[-1].name}" if saved else ""
        raise ValueError(f"the folder has no config.json{hint}")
    return _model(place, dtype), AutoTokenizer.from_pretrained(place)


def _load_adapter(folder: Path, dtype: Any) -> tuple[Any, Any]:
    peft = require("peft", "train")
    config = peft.PeftConfig.from_pretrained(str(folder))
    if not (folder / _ADAPTER_WEIGHTS).is_file():
        raise ValueError(f"it is an adapter without its weights: there is no {_ADAPTER_WEIGHTS} in it")
    if not config.base_model_name_or_path:
        raise ValueError(f"it is an adapter, and its {_ADAPTER} names no base model")
    try:
        place = model_place(config.base_model_name_or_path)
        model = _model(place, dtype, config.revision)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"it is an adapter, and its base model cannot be loaded: {error}") from error
    has_own = (folder / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(folder) if has_own else None
    if tokenizer is None or not tokenizer.chat_template:
        of_base = AutoTokenizer.from_pretrained(place, revision=config.revision)
        tokenizer = tokenizer or of_base
        tokenizer.chat_template = of_base.chat_template
    return peft.PeftModel.from_pretrained(model, str(folder)), tokenizer


def _model(place: str, dtype: Any, revision: str | None = None) -> Any:
    return AutoModelForCausalLM.from_pretrained(place, revision=revision, dtype=dtype, use_safetensors=True)
