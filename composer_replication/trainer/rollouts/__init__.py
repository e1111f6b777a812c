"""Rollouts as channel 2 takes them: their turns, what went wrong in them, and the hinted contexts."""
