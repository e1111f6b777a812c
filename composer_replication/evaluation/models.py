"""Models to evaluate: a checkpoint, an adapter, a run folder, or a model by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication._optional import MissingExtraError
from composer_replication.evaluation.overlap import is_run
from composer_replication.pretrained import SmolLM2NotInstalledError, load_checkpoint
from composer_replication.teacher_replay.serving.model_teacher import choose_device
from composer_replication.trainer.checkpoint import last_complete_checkpoint


def load_evaluated(name: str, *, device: str = "auto", like: Any = None) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    Args:
        name: as for `load_checkpoint`.
        device: as for `choose_device`.
        like: another model's tokenizer, which is used instead if its vocabulary is the same: models that are compared
            see the same chat template.

    Raises:
        ValueError: it cannot be loaded, or has no chat template.
        ImportError: what it needs is not installed.
    """
    place = choose_device(device)
    try:
        model, tokenizer = load_checkpoint(name, "auto")
    except (MissingExtraError, SmolLM2NotInstalledError):
        raise
    except Exception as error:  # a damaged checkpoint may raise anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"cannot load the model {name!r}: {reason}") from error
    if like is not None and like.get_vocab() == tokenizer.get_vocab():
        tokenizer = like
    if not tokenizer.chat_template:
        raise ValueError(f"{name} has no chat template: evaluation needs one")
    return model.to(place).eval(), tokenizer


def checkpoint_of(name: str) -> str:
    """Return the newest complete checkpoint of a run folder; any other name is returned as it is.

    Raises:
        ValueError: the run has no complete checkpoint.
    """
    folder = Path(name).expanduser()
    if not is_run(folder):
        return name
    found = last_complete_checkpoint(folder)
    if found is None:
        raise ValueError(f"{name} is a run without a complete checkpoint: there is nothing to evaluate")
    return str(found)
