"""Losses over hidden states: the vocabulary's logits exist only a few rows at a time.

`head` turns hidden states into logits, `chunks` plans how many rows at once, `chunked_loss` computes a loss and its
gradients in one sweep, `divergence` and `logprobs` are what callers use.
"""
