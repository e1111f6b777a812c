"""A training run from a configuration: its sections, loading and checks, launch, the run folder, the dry run."""
