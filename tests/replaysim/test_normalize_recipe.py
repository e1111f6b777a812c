"""Recipes: what they look like, and what is said of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from replaysim.some_pairs import recipe_file

from composer_replication.replaysim import DJNormalizer
from composer_replication.replaysim.recipe import find_recipe, load_recipe

LENGTH = "text_length_filter: {text_key: chosen, min_len: 8}"


def test_a_recipe_is_read(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, LENGTH, "document_deduplicator: {text_key: pair}")
    recipe = load_recipe(path)
    assert recipe.name == "recipe"
    assert [(step.position, step.label) for step in recipe.steps] == [
        (0, "text_length_filter on chosen"),
        (1, "document_deduplicator on pair"),
    ]
    assert recipe.steps[0].arguments == {"text_key": "chosen", "min_len": 8}
    before = recipe.sha256
    path.write_text(path.read_text() + "project_name: mine\n")
    assert load_recipe(path).name == "mine"
    assert load_recipe(path).sha256 != before


def test_both_recipes_come_with_the_package() -> None:
    assert find_recipe("default") == DJNormalizer.DEFAULT_RECIPE
    assert load_recipe("default").name == "default"
    prose = [next(iter(step.values())) for step in yaml.safe_load(find_recipe("prose").read_text())["process"]]
    assert [step["text_key"] for step in prose] == ["chosen", "rejected"] * 3 + ["chosen"]
    assert [step["max_ratio"] for step in prose[4:6]] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("process: [", "is not YAML: "),
        ("\xff\xfe\x00", "is not YAML: "),
        ("- text_length_filter", "has no list under 'process'"),
        ("process: text_length_filter", "has no list under 'process'"),
        (f"np: 4\nprocess:\n  - {LENGTH}", "sets np: the normaliser sets these itself"),
        ("process:\n  - {a: {}, b: {}}", "entry 1 of 'process' must be one operator"),
        ("process:\n  - 3", "entry 1 of 'process' must be one operator"),
        ("process:\n  - text_length_filter: 3", "entry 1 of 'process' must be one operator"),
        ("process:\n  - text_length_filter", "text_length_filter has text_key None; say which text"),
        ("process:\n  - text_length_filter: {text_key: text}", "has text_key 'text'"),
        (f"process:\n  - {LENGTH}\n  - no_such_filter: {{text_key: chosen}}", "no_such_filter: Unknown operator"),
        ("process:\n  - text_lenght_filter: {text_key: chosen}", "did you mean text_length_filter"),
        ("process:\n  - text_length_filter: {text_key: chosen, min_length: 1}", "Unknown parameter 'min_length'"),
        ("process:\n  - text_length_filter: {text_key: chosen, min_len: many}", "'min_len' expects type 'int'"),
        ("process:\n  - text_length_filter: {text_key: pair}", "text_length_filter cannot look at 'pair'"),
        ("process:\n  - random_selector: {text_key: chosen}", "random_selector does not work on pairs"),
        (
            "process:\n  - document_minhash_deduplicator: {text_key: chosen}",
            "document_minhash_deduplicator does not work on",
        ),
        (
            "process:\n  - ray_document_deduplicator: {text_key: chosen}",
            "ray_document_deduplicator does not work on pairs",
        ),
        (
            "process:\n  - python_lambda_mapper: {text_key: chosen, lambda_str: x}",
            "python_lambda_mapper cannot be loaded",
        ),
    ],
)
def test_a_wrong_recipe_is_one_line_that_names_it(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        DJNormalizer(path)
    assert f"recipe {path}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"no/such.yaml: there is no such recipe; give .* one of default, prose"
    ):
        DJNormalizer("no/such.yaml")
    recipe_file(tmp_path, LENGTH)
    for path in (tmp_path, tmp_path / "recipe"):
        with pytest.raises(FileNotFoundError, match="there is no such recipe"):
            DJNormalizer(path)
