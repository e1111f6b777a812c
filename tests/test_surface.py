"""The public surface changes only on purpose: it is pinned in surface.txt."""

from __future__ import annotations

import inspect

import surface

from composer_replication import build_batch, compose_loss, generalized_jsd_loss


def test_surface_is_as_pinned() -> None:
    pinned = surface.FILE.read_text(encoding="utf-8")
    assert surface.render() == pinned, "the surface changed: if on purpose, run `python tests/surface.py`"


def test_every_function_users_call_has_a_docstring() -> None:
    for function in (compose_loss, build_batch, generalized_jsd_loss):
        text = inspect.getdoc(function) or ""
        for name in inspect.signature(function).parameters:
            assert f"{name}:" in text, f"{function.__name__} does not explain {name}"
