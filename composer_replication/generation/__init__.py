"""Whole episodes with an environment, a batch at a time: the caches of the rows are kept from turn to turn."""

from composer_replication._optional import lazy_exports

_HOMES = {
    "Episode": "composer_replication.generation.episodes",
    "EpisodeSettings": "composer_replication.generation.episodes",
    "run_episodes": "composer_replication.generation.episodes",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
