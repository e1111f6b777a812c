"""The normaliser in this process: what each operator drops and why, what is kept, and what the process keeps."""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from replaysim.some_pairs import LONG_ENOUGH, call, pair, recipe_file

from composer_replication import MissingExtraError
from composer_replication.replaysim import DJNormalizer, NormalizedDPOPair, NormalizeReport
from composer_replication.replaysim import recipe as recipe_module
from composer_replication.replaysim.engines import OperatorError
from composer_replication.replaysim.recipe import load_operators, load_recipe
from composer_replication.traces import parse_action, render_action

THREE_PAIRS = Path(__file__).parent / "fixtures" / "three_pairs.jsonl"


def run(pairs: list[Any], recipe: str | Path = "default") -> tuple[list[NormalizedDPOPair], NormalizeReport]:
    normalizer = DJNormalizer(recipe)
    assert normalizer.report is None
    kept = normalizer.normalize(iter(pairs))
    assert normalizer.report is not None
    return kept, normalizer.report


def reasons(pairs: list[Any], recipe: str | Path = "default") -> dict[int, str]:
    _, report = run(pairs, recipe)
    return {one.index: one.reason for one in report.dropped}


def test_the_three_pairs_pass_unchanged() -> None:
    pairs = [json.loads(line) for line in THREE_PAIRS.read_text(encoding="utf-8").splitlines()]
    for one in pairs:
        assert one["n_teachers_agreeing"] == len(one["teachers"]) >= 2
        for text in (one["chosen"], one["rejected"]):
            assert parse_action(text).tool_calls
            assert render_action(parse_action(text)) == text
    for recipe in ("default", "prose"):
        kept, report = run(pairs, recipe)
        assert (report.pairs_in, report.pairs_out, report.dropped) == (3, 3, [])
        passed = DJNormalizer(skip_dj=True).normalize(pairs)
        for one, given, skipped in zip(kept, pairs, passed, strict=True):
            assert one.state_id == given["state_id"]
            assert one.state_messages == given["state_messages"]
            assert (one.chosen_messages, one.rejected_messages) == (skipped.chosen_messages, skipped.rejected_messages)
            assert one.n_teachers_agreeing == given["n_teachers_agreeing"]
            assert one.metadata["pair"]["teachers"] == given["teachers"]
            assert "changed" not in one.metadata


EVERY_KIND_OF_FILTER = (
    *(f"text_length_filter: {{text_key: {side}, min_len: 8, max_len: 32000}}" for side in ("chosen", "rejected")),
    *(f"words_num_filter: {{text_key: {side}, min_num: 2, max_num: 4096}}" for side in ("chosen", "rejected")),
    *(f"special_characters_filter: {{text_key: {side}, max_ratio: 0.95}}" for side in ("chosen", "rejected")),
    "document_deduplicator: {text_key: pair}",
)


def test_each_step_says_what_it_dropped_and_why(tmp_path: Path) -> None:
    pairs = [
        pair(0),
        pair(1, chosen="ls -la"),
        pair(2, rejected="1234567"),
        pair(3, chosen="a " * 16_001),
        pair(4, rejected="oneverylongword"),
        pair(5, rejected="a " * 4097),
        pair(6, chosen="=-=- 1 b2 c3 " + "-" * 200),
        pair(0),
        pair(7),
    ]
    kept, report = run(pairs, recipe_file(tmp_path, *EVERY_KIND_OF_FILTER))
    assert {one.index: one.reason for one in report.dropped} == {
        1: "text_length_filter on chosen: text_len 6 < 8",
        2: "text_length_filter on rejected: text_len 7 < 8",
        3: "text_length_filter on chosen: text_len 32002 > 32000",
        4: "words_num_filter on rejected: num_words 1 < 2",
        5: "words_num_filter on rejected: num_words 4097 > 4096",
        6: "special_characters_filter on chosen: special_char_ratio 0.990610 > 0.95".replace("0.990610", "0.99061"),
        7: "document_deduplicator on pair: the same as state-000 (pair 0)",
    }
    assert [one.state_id for one in kept] == ["state-000", "state-007"]
    assert [one.state_id for one in report.dropped] == [f"state-{number:03d}" for number in (1, 2, 3, 4, 5, 6, 0)]
    assert [(one.op, one.field, one.seen, one.dropped) for one in report.ops] == [
        ("text_length_filter", "chosen", 9, 2),
        ("text_length_filter", "rejected", 7, 1),
        ("words_num_filter", "chosen", 6, 0),
        ("words_num_filter", "rejected", 6, 2),
        ("special_characters_filter", "chosen", 4, 1),
        ("special_characters_filter", "rejected", 3, 0),
        ("document_deduplicator", "pair", 3, 1),
    ]
    assert (report.pairs_in, report.pairs_out) == (9, 2)


def test_what_is_kept_says_what_it_went_through(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, *EVERY_KIND_OF_FILTER)
    ((kept,), _) = run([pair(1, chosen=call("pytest -q"), margin=2)], recipe)
    assert kept.metadata == {
        "recipe": "recipe",
        "recipe_sha256": load_recipe(recipe).sha256,
        "executor": "batched",
        "ops": [step.label for step in load_recipe(recipe).steps],
        "stats": {
            "chosen": {"text_len": 51, "num_words": 5, "special_char_ratio": pytest.approx(17 / 51)},
            "rejected": {"text_len": 27, "num_words": 5, "special_char_ratio": pytest.approx(5 / 27)},
        },
        "pair": {"margin": 2},
    }


def test_tool_calls_are_counted_apart() -> None:
    _, report = run([pair(0, rejected=call("ls")), pair(1, chosen="no", rejected=call("ls")), pair(2, chosen="no")])
    assert (report.tool_call_pairs_in, report.tool_call_pairs_out) == (2, 1)
    assert (report.ops[0].dropped, report.ops[0].dropped_tool_calls) == (2, 1)
    assert [one.tool_call for one in report.dropped] == [True, False]


def test_a_student_that_is_stuck_is_one_pair_before_its_failure_and_one_after() -> None:
    function = {"name": "Bash", "arguments": '{"command": "make"}'}
    messages: list[Any] = [{"role": "user", "content": "Task"}]
    pairs = []
    for number in range(4):
        pairs.append(pair(number, call("cat Makefile"), call("make"), state_messages=[*messages]))
        messages.append({"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": "Error 1"})
    other = pair(4, call("cat Makefile"), call("make -B"), state_messages=[*messages])
    same = "document_deduplicator on lesson: the same as state-00{} (pair {})"
    first, second = same.format(0, 0), same.format(1, 1)
    assert reasons([*pairs, other, pairs[0]]) == {2: second, 3: second, 5: first}


def test_the_right_call_at_another_state_is_another_lesson() -> None:
    pairs = [pair(number, chosen=call("pytest -q")) for number in range(3)]
    assert reasons(pairs) == {}
    same = "document_deduplicator on chosen: the same as state-000 (pair 0)"
    assert reasons(pairs, "prose") == {1: same, 2: same}


def test_duplicates_are_the_same_to_the_letter() -> None:
    pairs = [
        pair(0, chosen=call("cp -r a b")),
        pair(0, chosen=call("cp -R a b")),
        pair(0, chosen=call("cp -r a b2")),
        pair(0, chosen=call("cp -r a b"), rejected="Rewrite the module, at once."),
        pair(0, chosen=call("cp -r a b"), state_id="elsewhere"),
    ]
    assert reasons(pairs) == {4: "document_deduplicator on lesson: the same as state-000 (pair 0)"}
    assert list(reasons(pairs, "prose")) == [1, 2, 3, 4]


def test_a_side_is_judged_by_its_own_text() -> None:
    # One statistic of a kind per record is what data-juicer has: the second filter would see the first one's figure.
    steps = reasons([pair(0, rejected="short"), pair(1, chosen="a " * 2000)])
    assert steps == {0: "text_length_filter on rejected: text_len 5 < 8"}


def test_a_mapper_changes_texts_and_messages_and_what_later_steps_see(tmp_path: Path) -> None:
    recipe = recipe_file(
        tmp_path,
        "text_length_filter: {text_key: chosen, min_len: 8}",
        "whitespace_normalization_mapper: {text_key: chosen}",
        "text_length_filter: {text_key: chosen, min_len: 8}",
        "document_deduplicator: {text_key: pair}",
    )
    padded = [pair(0, chosen=f"  {LONG_ENOUGH}\t"), pair(0), pair(1, chosen="   brief   ")]
    kept, report = run(padded, recipe)
    assert {one.index: one.reason for one in report.dropped} == {
        1: "document_deduplicator on pair: the same as state-000 (pair 0)",
        2: "text_length_filter on chosen: text_len 5 < 8",
    }
    assert [one.dropped for one in report.ops] == [0, 0, 1, 1]
    assert kept[0].chosen_messages == [{"role": "assistant", "content": LONG_ENOUGH}]
    assert kept[0].metadata["changed"] == ["chosen"]
    assert kept[0].metadata["stats"] == {"chosen": {"text_len": len(LONG_ENOUGH)}}


def test_operators_that_take_one_record_at_a_time(tmp_path: Path) -> None:
    recipe = recipe_file(
        tmp_path,
        "general_field_filter: {text_key: chosen, filter_condition: \"chosen != 'Forbidden words.'\"}",
        'python_lambda_mapper: {text_key: rejected, lambda_str: \'lambda sample: {**sample, "rejected": "new"}\'}',
    )
    kept, report = run([pair(0), pair(1, chosen="Forbidden words.")], recipe)
    assert [one.rejected_messages[0]["content"] for one in kept] == ["new"]
    assert [one.reason for one in report.dropped] == [
        "general_field_filter on chosen: general_field_filter_condition False"
    ]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("min_len: 8, max_len: 9, min_closed_interval: false", " <= 8"),
        ("min_len: 1, max_len: 8, max_closed_interval: false", " >= 8"),
        ("min_len: 1, max_len: 9, reversed_range: true", ", min_len 1, max_len 9"),
    ],
)
def test_bounds_that_are_open_or_turned_around(bounds: str, expected: str, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, f"text_length_filter: {{text_key: chosen, {bounds}}}")
    assert reasons([pair(0, chosen="12345678")], recipe) == {0: f"text_length_filter on chosen: text_len 8{expected}"}


def test_statistics_are_in_the_types_of_json(tmp_path: Path) -> None:
    (operator,) = load_operators(load_recipe(recipe_file(tmp_path, "text_length_filter: {text_key: chosen}")))
    found = {"ratio": numpy.float32(0.5), "counts": numpy.array([1, 2]), "words": ("a", "b"), "nothing": None}
    stats_key = "__dj__stats__"
    operator.inner = SimpleNamespace(compute_stats_batched=lambda batch: {stats_key: [found, {"text_len": 3}]})
    measured = operator.measure({"index": [0, 1], "chosen": ["", ""], "rejected": ["", ""]})
    assert measured == [{"ratio": 0.5, "counts": [1, 2], "words": ["a", "b"], "nothing": None}, {"text_len": 3}]
    assert type(measured[0]["ratio"]) is float


def test_more_than_one_batch() -> None:
    pairs = [pair(number, chosen=LONG_ENOUGH if number % 700 else "no") for number in range(2300)]
    kept, report = run([*pairs, pairs[1]])
    assert [one.index for one in report.dropped] == [0, 700, 1400, 2100, 2300]
    expected = [one["state_id"] for number, one in enumerate(pairs) if number % 700]
    assert [one.state_id for one in kept] == expected


def test_nothing_in_and_nothing_left(tmp_path: Path) -> None:
    assert run([])[0] == []
    kept, report = run([pair(0, chosen=""), pair(1, chosen="")])
    assert (kept, report.pairs_out, len(report.dropped)) == ([], 0, 2)
    ((kept_one,), report) = run([pair()], recipe_file(tmp_path))
    assert (kept_one.metadata["ops"], kept_one.metadata["stats"], report.ops) == ([], {}, [])


def test_an_operator_that_fails_is_named(tmp_path: Path) -> None:
    failing = recipe_file(tmp_path, "python_lambda_mapper: {text_key: chosen, lambda_str: 'lambda sample: 1 / 0'}")
    with pytest.raises(OperatorError, match="python_lambda_mapper on chosen failed: ZeroDivisionError: division by"):
        run([pair()], failing)
    doubling = recipe_file(
        tmp_path,
        "python_lambda_mapper: {text_key: chosen, batched: true, "
        "lambda_str: 'lambda batch: {name: values * 2 for name, values in batch.items()}'}",
    )
    with pytest.raises(
        OperatorError, match="on chosen failed: ValueError: 1 records became 2; it may only change texts"
    ):
        run([pair()], doubling)


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_runs_again_if_it_did(running: bool) -> None:
    (gc.enable if running else gc.disable)()
    try:
        DJNormalizer(skip_dj=True).normalize([pair()])
        assert gc.isenabled() is running
        with pytest.raises(ValueError, match="pair 0: not a pair, but int"):
            DJNormalizer(skip_dj=True).normalize([3])  # type: ignore[list-item]
        assert gc.isenabled() is running
    finally:
        gc.enable()


def test_skipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "data_juicer", None)
    normalizer = DJNormalizer(tmp_path / "nowhere.yaml", skip_dj=True)
    kept = normalizer.normalize([pair(0, chosen=""), pair(0, chosen=call("ls"), margin=1)])
    assert [one.metadata for one in kept] == [{"skipped": True}, {"skipped": True, "pair": {"margin": 1}}]
    assert kept[1].chosen_messages[0]["tool_calls"][0]["function"]["name"] == "Bash"
    report = normalizer.report
    assert report is not None
    assert (report.pairs_in, report.pairs_out, report.tool_call_pairs_in, report.ops) == (2, 2, 1, [])


@pytest.mark.parametrize("missing", ["data_juicer", "ray"])
def test_a_missing_package_is_an_error_that_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RuntimeError, match=r"pip install .*\[replaysim\]'") as caught:
        DJNormalizer()
    assert isinstance(caught.value, MissingExtraError)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="executor must be one of batched, data-juicer, ray, got 'dask'"):
        DJNormalizer(executor="dask")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        DJNormalizer(processes=0)


IN_A_FRESH_PROCESS = """
import io, json, logging, random, sys
from loguru import logger
sink = io.StringIO()
logger.remove()
logger.add(sink, level="TRACE")
from composer_replication.replaysim import DJNormalizer
assert "data_juicer" not in sys.modules
pair = json.loads(sys.argv[1])
path, numbers = sys.path[:], random.getstate()
(kept,) = DJNormalizer().normalize([pair])
logger.info("still mine")
heavy = [name for name in ("ray", "torch", "transformers") if name in sys.modules]
messages = sink.getvalue()
assert messages.count("\\n") == 1 and "still mine" in messages, messages
assert (logging.getLogger().handlers, logging.getLogger().level) == ([], logging.WARNING)
assert (sys.path, random.getstate()) == (path, numbers)
# What was left out is there for whoever asks for it.
import data_juicer.core
from data_juicer.core import DefaultExecutor
assert data_juicer.core.data.NestedDataset is sys.modules["data_juicer.core.data"].NestedDataset
from data_juicer.utils.lazy_loader import LazyLoader
assert LazyLoader._install_package.__func__.__name__ == "_install_package"
print(json.dumps({"heavy": heavy, "metadata": kept.metadata["executor"]}))
"""


def test_the_process_keeps_what_is_its_own_and_gets_no_more_than_the_operators(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, json.dumps(pair())]
    package = Path(__file__).parents[2]
    environment = {"HOME": str(home), "PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"heavy": [], "metadata": "batched"}
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.setattr(subprocess, "check_call", lambda *_: pytest.fail("it called pip"))
    recipe = recipe_file(tmp_path, "words_num_filter: {text_key: chosen, tokenization: true}")
    with pytest.raises(ValueError, match=r"words_num_filter cannot be loaded: .*sentencepiece") as caught:
        DJNormalizer(recipe)
    assert "\n" not in str(caught.value)


def test_words_are_stripped_as_data_juicer_does_it_and_its_function_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    DJNormalizer()  # brings data-juicer in
    helper = importlib.import_module("data_juicer.ops.common.helper_func")
    original = helper.strip
    asked: list[str] = []
    monkeypatch.setattr(recipe_module, "_MOST_WORDS", 3)

    def counted(word: str, characters: set[str]) -> str:
        asked.append(word)
        return original(word, characters)

    monkeypatch.setattr(helper, "strip", counted)
    brackets, stars = set("[]"), set("*")
    words = ["[a]", "*b*", "[a]", "", "[*c*]", "[a]"]
    with recipe_module.words_stripped_once():
        got = [(helper.strip(word, brackets), helper.strip(word, stars)) for word in words]
    assert got == [(original(word, brackets), original(word, stars)) for word in words]
    assert asked.count("[a]") == 4  # once for each set of characters, and once more after it was forgotten
    assert helper.strip is counted
