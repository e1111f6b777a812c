"""Environments: tasks with verifiable rewards and errors that say something, and the sandbox for model-written code."""
