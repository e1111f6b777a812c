"""What pyproject.toml, constraints.txt and the code say of extras and versions is one story."""

from __future__ import annotations

import ast
import os
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
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
NOT_PINNED = {name for name, extra in EXTRAS.items() if not extra.pinned}
DECLARED = {
    canonicalize_name(Requirement(line).name)
    for extra, lines in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
    if extra != "dev"
    for line in lines
} - {"composer-replication"}
# Declared without an import in the package, and why.
NOT_IMPORTED = {
    "aiohttp": "data-juicer imports it without declaring it",
    "s3fs": "fsspec imports it for s3://",
    "modal": "no executor starts replicas there yet",
    "torchmonarch": "the extra monarch has no code yet",
    **dict.fromkeys(("verl", "cachetools", "fastapi"), "the extra verl has no code yet"),
}


def imported() -> set[str]:
    """The distributions whose modules the package imports: by a statement, or by `require` and its like."""
    modules: set[str] = set()
    for file in (ROOT / "composer_replication").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("require", "import_module"):
                modules.update(one.value for one in node.args[:1] if isinstance(one, ast.Constant))
    tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"composer_replication"}
    homes = metadata.packages_distributions()
    return {canonicalize_name(home) for top in tops for home in homes.get(top, [top])}


def test_what_is_imported_is_declared_and_what_is_declared_is_used() -> None:
    used = imported()
    assert used - DECLARED == set()
    assert DECLARED - used == set(NOT_IMPORTED)


def test_extras_are_those_the_doctor_knows() -> None:
    assert set(PROJECT["optional-dependencies"]) == {*EXTRAS, "all"}


def test_version_and_commands() -> None:
    assert PROJECT["version"] == composer_replication.__version__ == metadata.version("composer-replication")
    assert PROJECT["scripts"] == dict.fromkeys(("composer-replication", "crf"), "composer_replication.cli:main")


def test_the_changelog_names_the_version_and_the_urls_name_files() -> None:
    assert f"\n## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()
    for url in PROJECT["urls"].values():
        assert url.startswith(PROJECT["urls"]["Repository"])
        _, _, path = url.partition("/main/")
        assert (ROOT / path).exists(), url


def test_the_workflow_runs_what_a_change_must_pass() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["timeout-minutes"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
    assert os.access(ROOT / ".ci/run", os.X_OK)
    for form in (ROOT / ".github/ISSUE_TEMPLATE").iterdir():
        assert {"name", "description", "body"} <= set(yaml.safe_load(form.read_text())), form.name


def test_classifiers_name_the_pythons_that_the_core_takes() -> None:
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert named[0] == PROJECT["requires-python"].removeprefix(">=")
    assert not [one for one in PROJECT["classifiers"] if one.startswith("License")]  # the SPDX expression says it


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
