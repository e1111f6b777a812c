"""Importing the package is cheap and touches no heavy library; every public name still resolves."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import composer_replication
import composer_replication._tiny
import composer_replication.distillation
from composer_replication._optional import install_command

HEAVY = ("torch", "transformers", "numpy", "trl", "typer", "rich", "pydantic")


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = json.loads(fresh("import composer_replication, sys, json; print(json.dumps(sorted(sys.modules)))"))
    assert not [name for name in HEAVY if name in loaded]


def test_dir_lists_the_names_before_they_are_loaded() -> None:
    out = fresh("import composer_replication as c, sys; print(set(c.__all__) <= set(dir(c)), 'torch' in sys.modules)")
    assert out.split() == ["True", "False"]


@pytest.mark.parametrize(
    "package",
    [composer_replication, composer_replication.distillation, composer_replication._tiny],
    ids=lambda package: package.__name__,
)
def test_every_public_name_resolves(package: object) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


def test_without_torchft_the_outer_loop_is_none_at_the_top_and_an_error_below() -> None:
    out = fresh(
        "import sys; sys.modules['torchft'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torchft' else real(name, *rest)\n"
        "import composer_replication as c; print(c._DILOCO_AVAILABLE, c.make_diloco_outer_loop)\n"
        "import composer_replication.diloco as d; print(d._TORCHFT_AVAILABLE, d.DiLoCo, d.Manager, d._DummyWork)\n"
        "try: d.make_diloco_outer_loop(None, [], None)\n"
        "except RuntimeError as e: print(type(e).__name__, isinstance(e, ImportError), e)\n"
    )
    assert out.splitlines() == [
        "False None",
        "False None None None",
        "MissingExtraError True this needs the package that provides 'torchft', which is not installed: "
        + install_command("diloco"),
    ]
