"""The configuration of a training run, for Python: the same as `composer-replication train` reads."""

from composer_replication.run.configuration import Config
from composer_replication.run.loading import ConfigError, config_schema, load_config, parse_config

__all__ = ["Config", "ConfigError", "config_schema", "load_config", "parse_config"]
