"""Trees of Python source, made in several threads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from composer_replication.python_syntax import parse_literal, parse_python

NESTED = f"{'[' * 20}1{']' * 20}"


def deep(frames: int) -> object:
    """Parse with so many frames more on the stack."""
    return deep(frames - 1) if frames else parse_literal("[1]")


@pytest.fixture
def others() -> Iterator[list[Future[object]]]:
    """Another thread makes a tree when garbage is collected, which is in the middle of making the first one."""
    asked: list[Future[object]] = []
    with ThreadPoolExecutor(1) as thread:
        thread.submit(parse_literal, "1").result()  # so that it is there

        def let_another_parse(*_: object) -> None:
            if not asked:
                asked.append(thread.submit(deep, 10))
                wait(asked, timeout=0.2)

        thresholds = gc.get_threshold()
        gc.callbacks.append(let_another_parse)
        gc.set_threshold(1)
        yield asked
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_another_parse)


def test_threads_do_not_disturb_each_other(others: list[Future[object]]) -> None:
    others.clear()
    assert str(parse_literal(NESTED)) == NESTED
    assert others[0].result() == [1]
    others.clear()
    assert len(parse_python(f"first = {NESTED}\nsecond = 2").body) == 2
    assert others[0].result() == [1]


def test_what_is_no_python_is_said() -> None:
    with pytest.raises(SyntaxError):
        parse_python("def")
    with pytest.raises(ValueError, match="malformed"):
        parse_literal("f()")
