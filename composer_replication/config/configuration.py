"""The whole configuration, checked."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import model_validator

from composer_replication.config.combinations import combination_problems
from composer_replication.config.resolving import resolved
from composer_replication.config.sections import (
    ChannelsSection,
    DataSection,
    EnvironmentSection,
    ModelSection,
    OptimizerSection,
    Section,
    TrainingSection,
)


class Config(Section):
    """A training run, as `composer-replication train` takes it. Making one checks it (see `load_config`)."""

    model: ModelSection
    """The model that is trained."""
    data: DataSection = DataSection()
    """What there is to learn from."""
    environment: EnvironmentSection | None = None
    """Where rollouts happen; null: learn from the logs alone."""
    channels: ChannelsSection = ChannelsSection()
    """The three losses that are added up."""
    optimizer: OptimizerSection = OptimizerSection()
    """How gradients change the weights."""
    training: TrainingSection
    """The run."""

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        return resolved(given)

    @model_validator(mode="after")
    def _check_combinations(self) -> Config:
        problems = list(combination_problems(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Every setting, as JSON and YAML can hold it."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """Every setting as YAML, which `load_config` reads back to an equal configuration."""
        text: str = yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)
        return text
