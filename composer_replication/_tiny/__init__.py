"""A model kit for tests and demos that needs no download: a tokenizer trained on the spot, real chat templates, small
random models, teachers that are functions, a little house of tools with a model that works in it, and a loader for the
real SmolLM2-135M weights where they are installed."""

from composer_replication._lazy import lazy_exports

_HOMES = {
    "CHAT_TEMPLATES": "composer_replication._tiny.tokenizer",
    "tiny_tokenizer": "composer_replication._tiny.tokenizer",
    "tiny_model": "composer_replication._tiny.models",
    "load_smollm2": "composer_replication.pretrained",
    "ToolHouse": "composer_replication._tiny.tool_house",
    "house_tasks": "composer_replication._tiny.tool_house",
    "house_tokenizer": "composer_replication._tiny.warm_up",
    "warmed_up_model": "composer_replication._tiny.warm_up",
    "replay_samples": "composer_replication._tiny.sample_replay",
    "run_loss_demo": "composer_replication._tiny.loss_demo",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
