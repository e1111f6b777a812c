"""The model and the tokenizer that a configuration names, checked before anything is trained."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from composer_replication._optional import require
from composer_replication._tiny.models import _template_text
from composer_replication.chat_templates import renders_tool_calls
from composer_replication.pretrained import model_place
from composer_replication.run.configuration import Config
from composer_replication.run.sections import ModelSection

# A turn's borders must be tokens of their own: spelt out in pieces, they are text that no model has seen.
_WITH_A_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_CHATML = ("<|im_start|>", "<|im_end|>")


def load_tokenizer(settings: ModelSection) -> Any:
    """The tokenizer, with the chat template that the settings name, and a token to pad with.

    Raises:
        ValueError: there is none, or it has no chat template; the message says which setting is to blame.
    """
    from transformers import AutoTokenizer

    place = _place(settings)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=settings.revision)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_not_loaded(settings, "tokenizer", error)) from error
    template = _chat_template(settings.chat_template)
    if template is not None:
        missing = [mark for mark in _CHATML if mark in template and mark not in tokenizer.get_vocab()]
        if missing:
            raise ValueError(
                f"model.chat_template: {settings.chat_template} uses {missing[0]}, not a token of {settings.name}"
            )
        tokenizer.chat_template = template
    if not tokenizer.chat_template:
        raise ValueError(
            f"model.chat_template: {settings.name} has no chat template of its own; set it to qwen2_5, or to a file"
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ValueError(f"model.name: the tokenizer of {settings.name} has neither a padding nor an end token")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(settings: ModelSection) -> Any:
    """The model with its weights, in `settings.dtype`.

    Raises:
        ValueError: it cannot be loaded; the message says why.
    """
    from transformers import AutoModelForCausalLM

    place = _place(settings)
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            place,
            revision=settings.revision,
            dtype=getattr(torch, settings.dtype),
            attn_implementation=settings.attn_implementation,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ValueError(_not_loaded(settings, "model", error)) from error
    # What is missing would be made up at random, a head above all.
    if missing := sorted(loaded["missing_keys"]):
        raise ValueError(
            f"model.name: {settings.name} lacks {len(missing)} weights of a causal language model, {missing[0]} among "
            "them: it was saved without its head, or as another kind of model"
        )
    return model


def empty_model(settings: ModelSection) -> Any:
    """The model without its weights, on the meta device: for its shapes.

    Raises:
        ValueError: its configuration cannot be loaded, or is of no causal language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    place = _place(settings)
    try:
        config = AutoConfig.from_pretrained(place, revision=settings.revision)
        _check_architecture(settings, config)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, settings.dtype))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_not_loaded(settings, "model", error)) from error


def _check_architecture(settings: ModelSection, config: Any) -> None:
    """Require what was saved to have a language model's head, as far as its configuration tells."""
    saved_as = getattr(config, "architectures", None) or []
    if saved_as and not any(mark in name for name in saved_as for mark in _WITH_A_HEAD):
        raise ValueError(
            f"model.name: {settings.name} was saved as {saved_as[0]}, which has no output embeddings to predict tokens "
            "with: a causal language model is needed"
        )


def check_model(model: Any, tokenizer: Any, settings: ModelSection) -> None:
    """Require a head, and a row of it and of the embeddings for every token that the tokenizer can give.

    Raises:
        ValueError: otherwise.
    """
    get_head = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    if head is None:
        raise ValueError(
            f"model.name: {settings.name} ({type(model).__name__}) has no output embeddings to predict with"
        )
    rows = min(model.get_input_embeddings().weight.shape[0], head.weight.shape[0])
    tokens = max(len(tokenizer), max(tokenizer.get_vocab().values(), default=-1) + 1)
    if tokens > rows:
        raise ValueError(
            f"model.name: the tokenizer of {settings.name} has {tokens:,} tokens and the model rows for {rows:,}: "
            "they do not belong together"
        )


def check_lengths(model: Any, config: Config) -> None:
    """Require that the model can look as far back as the data may reach.

    Raises:
        ValueError: otherwise.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    wanted = {
        "data.max_length": config.data.max_length if config.data.traces is not None else 0,
        "channels.replay.max_length": config.channels.replay.max_length if config.data.pairs else 0,
        "channels.grpo.max_completion_length": (
            config.channels.grpo.max_completion_length if config.environment is not None else 0
        ),
    }
    for key, length in wanted.items():
        if isinstance(positions, int) and length > positions:
            raise ValueError(
                f"{key}: {length:,} tokens are more than the {positions:,} positions of {config.model.name}"
            )


def check_tools(tokenizer: Any, needed_by: str) -> None:
    """Require a chat template that renders tool calls and their results.

    Raises:
        ValueError: otherwise; names what needs them.
    """
    if not renders_tool_calls(tokenizer):
        raise ValueError(
            f"model.chat_template: the template renders no tool calls, and {needed_by} needs them; set it to qwen2_5, "
            "or to a file"
        )


def lora_config(settings: ModelSection) -> Any:
    """The adapters in PEFT's form; None trains every weight.

    Raises:
        MissingExtraError: PEFT is not installed.
    """
    lora = settings.lora
    if lora is None:
        return None
    targets = lora.target_modules
    return require("peft", "train").LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if targets == ("all-linear",) else list(targets),
        use_rslora=lora.rslora,
        task_type="CAUSAL_LM",
        revision=settings.revision,
    )


def _place(settings: ModelSection) -> str:
    """The model's directory or hub id (see `model_place`); a directory must hold a whole model, not an adapter."""
    try:
        place = model_place(settings.name)
    except ValueError as error:
        raise ValueError(f"model.name: {error}") from None
    if Path(place).is_dir() and not (Path(place) / "config.json").is_file():
        raise ValueError(f"model.name: {settings.name} holds no model: there is no config.json in it")
    return place


def _chat_template(name: str) -> str | None:
    """The text of a template; None keeps the tokenizer's own."""
    if name == "keep":
        return None
    path = Path(name).expanduser()
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if name.replace("_", "").isalnum():
        with suppress(FileNotFoundError):
            return _template_text(f"{name}.jinja")
    raise ValueError(
        f"model.chat_template: {name} is neither a file nor a template that trl ships; or use keep, or qwen2_5"
    )


def _not_loaded(settings: ModelSection, what: str, error: Exception) -> str:
    if Path(settings.name).expanduser().is_dir():
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return f"model.name: the {what} in {settings.name} cannot be loaded: {reason[:300]}"
    from_hub = " ".join(str(error).split("\n", 1)[0].split())
    return f"model.name: {settings.name} is not a directory, and its {what} could not be loaded: {from_hub[:300]}"
