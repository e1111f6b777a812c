"""A model kit for tests and demos without a download: small random models with tokenizers trained on the spot and real
chat templates, the demo of the three channels and its local teachers."""

from composer_replication._optional import lazy_exports

_HOMES = {
    "CHAT_TEMPLATES": "composer_replication._tiny.models",
    "tiny_tokenizer": "composer_replication._tiny.models",
    "tiny_model": "composer_replication._tiny.models",
    "load_smollm2": "composer_replication.pretrained",
    "replay_samples": "composer_replication._tiny.sample_replay",
    "run_loss_demo": "composer_replication._tiny.loss_demo",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
