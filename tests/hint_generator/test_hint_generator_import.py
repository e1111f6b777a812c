"""The package's names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

from composer_replication import hint_generator


def test_every_public_name_is_there() -> None:
    for name in hint_generator.__all__:
        assert getattr(hint_generator, name) is not None
    assert set(hint_generator.__all__) <= set(dir(hint_generator))
    assert set(hint_generator._HOMES) == set(hint_generator.__all__)


def test_hints_need_neither_torch_nor_the_sdk() -> None:
    code = (
        "import sys; from composer_replication.hint_generator import mark_errors, LayeredHints, JudgeHints; "
        "print([name for name in ('torch', 'openai', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
