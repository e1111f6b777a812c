"""What pyproject.toml, constraints.txt and the code say of extras and versions is one story."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import composer_replication
from composer_replication._optional import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
NOT_PINNED = {"verl"}  # it wants an environment of its own


def test_extras_are_those_the_doctor_knows() -> None:
    assert set(PROJECT["optional-dependencies"]) == {*EXTRAS, "all"}


def test_version_and_commands() -> None:
    assert PROJECT["version"] == composer_replication.__version__ == metadata.version("composer-replication")
    assert PROJECT["scripts"] == dict.fromkeys(("composer-replication", "crf"), "composer_replication.cli:main")


def test_every_pin_is_exact_and_names_no_address() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|--|@|\+", text)
    for pin in PINS:
        assert [specifier.operator for specifier in pin.specifier] == ["=="], pin
    assert "torch==2.13.0" in text.splitlines()


@pytest.mark.parametrize(
    "requirement",
    [
        *PROJECT["dependencies"],
        *(
            line
            for extra, lines in PROJECT["optional-dependencies"].items()
            if extra not in NOT_PINNED
            for line in lines
        ),
    ],
)
def test_every_direct_dependency_has_a_pin_that_fits(requirement: str) -> None:
    wanted = Requirement(requirement)
    if wanted.name == "composer-replication":
        return
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
    assert pins, f"{wanted.name} is not pinned"
    for pin in pins:
        version = next(iter(pin.specifier)).version
        assert wanted.specifier.contains(version), f"{pin} does not satisfy {wanted}"


def test_installed_versions_are_the_pinned_ones() -> None:
    pinned = {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in PINS
        if pin.marker is None or pin.marker.evaluate()
    }
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"])
        if name in pinned and name not in ("pip", "setuptools"):
            assert distribution.version.partition("+")[0] == pinned[name], name
