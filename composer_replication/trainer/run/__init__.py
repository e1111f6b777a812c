"""A training run from a configuration: loading, checks, the run folder, the dry run."""
