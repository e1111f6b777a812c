"""Training: the collator, the TRL trainer with three channels, its teachers and its checkpoints."""
