"""Losses over hidden states: the vocabulary's logits exist only a few rows at a time.

`head` turns hidden states into logits, `sweep` makes one pass over chunks of rows, `chunked_loss` turns it into
autograd functions, and `losses` is what callers use.
"""
