"""Logged traces as rows of token ids, with the turns that a hint would have helped."""
