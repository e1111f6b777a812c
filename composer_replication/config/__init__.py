"""The configuration of a training run: strict, with vetted defaults, from YAML."""

from composer_replication.config.configuration import Config
from composer_replication.config.loading import config_schema, load_config, parse_config
from composer_replication.config.problems import ConfigError

__all__ = ["Config", "ConfigError", "config_schema", "load_config", "parse_config"]
