"""Teachers as users write them: what is filled in, what is refused, and why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.loopback_teacher import LoopbackTeachers, states_of

from composer_replication.teacher_replay import replay_trace
from composer_replication.teacher_replay.prices import NANO, Price, listed_price, to_nano
from composer_replication.teacher_replay.teachers import (
    DEFAULT_TEACHERS,
    OPENROUTER,
    TeacherError,
    load_teachers,
    model_families,
    resolve_teachers,
    shared_family,
)

LOCAL = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def _no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)


def one(**spec: Any) -> Any:
    return resolve_teachers([{"slug": "t", **spec}])[0]


def test_a_slug_is_enough_for_openrouter() -> None:
    (teacher,) = resolve_teachers(["openai/gpt-5"])
    assert (teacher.slug, teacher.model, teacher.base_url) == ("openai/gpt-5", "openai/gpt-5", OPENROUTER)
    assert teacher.price == listed_price("openai/gpt-5", None)
    assert (teacher.key_variable, teacher.concurrency, teacher.cache_control) == ("OPENROUTER_API_KEY", None, False)
    assert teacher.settings == {"model": "openai/gpt-5", "max_tokens": 8192}


def test_the_default_teachers_resolve_to_their_listed_prices() -> None:
    for teacher in resolve_teachers(DEFAULT_TEACHERS):
        assert teacher.price == listed_price(teacher.slug, None)
    assert [teacher.cache_control for teacher in resolve_teachers(DEFAULT_TEACHERS)] == [True, False, False]
    assert [set(teacher.families) for teacher in resolve_teachers(DEFAULT_TEACHERS)] == [
        {"claude"},
        {"gpt"},
        {"deepseek"},
    ]


def test_an_endpoint_of_ones_own_costs_nothing_and_needs_no_key() -> None:
    teacher = one(base_url=f"{LOCAL}/", model="a-model", parameters={"temperature": 0.5, "max_retries": 3})
    assert (teacher.base_url, teacher.key_variable, teacher.price) == (LOCAL, None, Price(0, 0, 0, 0))
    assert teacher.settings == {"model": "a-model", "max_tokens": 8192, "temperature": 0.5, "max_retries": 3}


def test_openai_itself_wants_another_name_for_the_limit() -> None:
    teacher = one(base_url="https://api.openai.com/v1", model="gpt-5", max_output_tokens=7)
    assert teacher.settings == {"model": "gpt-5", "max_completion_tokens": 7}
    assert teacher.price == listed_price("gpt-5", "https://api.openai.com/v1")


def test_openrouter_may_be_given_by_its_address() -> None:
    (named,) = resolve_teachers([{"slug": "openai/gpt-5", "base_url": f"{OPENROUTER}/"}])
    assert named == resolve_teachers(["openai/gpt-5"])[0]


def test_prices_of_ones_own_come_before_the_listed_ones() -> None:
    listed = listed_price("anthropic/claude-opus-4.7", None)
    name = {"model": "anthropic/claude-opus-4.7"}
    output = one(**name, output_per_mtok=7)
    assert output.price == Price(listed.input, to_nano(7), listed.cached_input, listed.cache_write)
    cached = one(**name, cached_input_per_mtok=0)
    assert cached.price == Price(listed.input, listed.output, 0, listed.cache_write)
    # Another price of the input says that the listed ones of its parts do not hold either.
    assert one(**name, input_per_mtok=8, cache_control=False).price == Price(
        to_nano(8), listed.output, to_nano(8), to_nano(8)
    )
    everything = one(
        model="nobody-knows-it",
        input_per_mtok=1,
        output_per_mtok=2,
        cached_input_per_mtok=0.5,
        cache_write_per_mtok=1.5,
    )
    assert everything.price == Price(*map(to_nano, (1, 2, 0.5, 1.5)))


def test_where_caches_are_asked_for_a_token_that_goes_into_them_costs_more_unless_its_price_is_given() -> None:
    prices = {"input_per_mtok": 4, "output_per_mtok": 8}
    assert one(**prices, cache_control=True).price.cache_write == to_nano(5)
    assert one(**prices, family="claude").price.cache_write == to_nano(5)
    assert one(**prices, cache_control=False, family="claude").price.cache_write == to_nano(4)
    assert one(**prices, cache_control=True, cache_write_per_mtok=4).price.cache_write == to_nano(4)


@pytest.mark.parametrize(
    ("spec", "family", "marks"),
    [
        ({"model": "anthropic/claude-opus-4.7"}, "claude", True),
        ({"slug": "my-claude", "model": "a-model"}, "claude", True),
        ({"model": "gpt-5", "family": "mine"}, "mine", False),
        ({"model": "anthropic/claude-opus-4.7", "cache_control": False}, "claude", False),
        ({"model": "a-model", "cache_control": True}, None, True),
    ],
)
def test_a_family_is_read_from_the_names_unless_it_is_given(
    spec: dict[str, Any], family: str | None, marks: bool
) -> None:
    teacher = one(base_url=LOCAL, **spec) if "slug" not in spec else resolve_teachers([{"base_url": LOCAL, **spec}])[0]
    assert (set(teacher.families), teacher.cache_control) == ({family} - {None}, marks)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tempreature": 1}, r"unknown field 'tempreature'; the fields are api_key_variable, base_url, .*slug"),
        ({1: 2, "tempreature": 1}, r"unknown field 1;"),
        ({"input_per_mtok": -1}, r"input_per_mtok must be dollars per million tokens, 0 or more, not -1"),
        ({"output_per_mtok": "2"}, r"output_per_mtok must be .* not '2'"),
        ({"cached_input_per_mtok": float("nan")}, r"cached_input_per_mtok must be .* not nan"),
        ({"cache_write_per_mtok": float("inf")}, r"cache_write_per_mtok must be .* not inf"),
        ({"input_per_mtok": None}, r"input_per_mtok must be .* not None"),
        ({"input_per_mtok": True}, r"input_per_mtok must be .* not True"),
        ({"max_output_tokens": 0}, r"max_output_tokens must be a whole number of at least 1, not 0"),
        ({"max_output_tokens": 1.5}, r"max_output_tokens must be .* not 1\.5"),
        ({"concurrency": True}, r"concurrency must be .* not True"),
        ({"concurrency": "many"}, r"concurrency must be .* not 'many'"),
        ({"base_url": "127.0.0.1:8000"}, r"base_url must be a URL such as http://127\.0\.0\.1:8000/v1, not '127"),
        ({"base_url": "ftp://host/v1"}, r"base_url must be a URL .* not 'ftp://host/v1'"),
        ({"base_url": "http://"}, r"base_url must be a URL .* not 'http://'"),
        ({"base_url": "http://[half/v1"}, r"base_url must be a URL .* not 'http://\[half/v1'"),
        ({"base_url": "http://host:port/v1"}, r"base_url must be a URL .* not 'http://host:port/v1'"),
        ({"base_url": "http://host:99999/v1"}, r"base_url must be a URL .* not 'http://host:99999/v1'"),
        ({"base_url": "http://host/v1?version=2"}, r"base_url must be a URL .* not 'http://host/v1' with"),
        ({"base_url": 8000}, r"base_url must be a URL .* not 8000"),
        ({"base_url": None}, r"base_url must be a URL .* not None"),
        ({"base_url": "http://me:hunter2@host/v1"}, r"base_url must not hold a password"),
        ({"base_url": "ftp://me:hunter2@host/v1"}, r"base_url must not hold a password"),
        ({"model": ""}, r"model must be a text, not ''"),
        ({"family": None}, r"family must be a text, not None"),
        ({"api_key_variable": 3}, r"api_key_variable must be a text, not 3"),
        ({"cache_control": "yes"}, r"cache_control must be true or false, not 'yes'"),
        ({"parameters": [1]}, r"parameters must be a mapping, not list"),
        ({"api_key_variable": "sk-live-0123"}, r"api_key_variable must be the name of an environment variable"),
        ({"parameters": {"best_of": 20}}, r"parameters must not hold 'best_of': .* its price is not known"),
        ({"parameters": {"stream": True}}, r"parameters must not hold 'stream': the request sets it"),
        ({"parameters": {"max_tokens": 3}}, r"parameters must not hold 'max_tokens'"),
        ({"parameters": {"stop": {1, 2}}}, r"parameters must be what JSON can hold: .*set"),
        ({"parameters": {"temperature": float("nan")}}, r"parameters must be what JSON can hold"),
    ],
)
def test_a_wrong_field_is_named_with_its_teacher_and_its_value(spec: dict[Any, Any], message: str) -> None:
    with pytest.raises(TeacherError, match=f"^teacher t: {message}") as raised:
        resolve_teachers([{"slug": "t", **spec}])
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (["a"], "a teacher is a slug, or a mapping with a `slug`, not list"),
        (None, "a teacher is a slug, or a mapping with a `slug`, not NoneType"),
        ({}, "a teacher needs a `slug`; this one has nothing"),
        ({"model": "m", "api_key": "sk-secret"}, "a teacher needs a `slug`; this one has model, api_key"),
        ({"slug": 7}, "a teacher needs a `slug`; this one has slug"),
        ("  ", "a teacher needs a `slug`; this one has slug"),
    ],
)
def test_what_has_no_slug_is_refused_and_its_values_are_not_repeated(spec: Any, message: str) -> None:
    with pytest.raises(TeacherError) as raised:
        resolve_teachers([spec])
    assert str(raised.value) == message


def test_no_teachers_and_two_of_one_name_are_refused() -> None:
    with pytest.raises(TeacherError, match="there are no teachers: name at least one"):
        resolve_teachers([])
    twice = [{"slug": "b", "base_url": LOCAL}, {"slug": "a", "base_url": LOCAL}, {"slug": "b", "base_url": LOCAL}]
    with pytest.raises(TeacherError, match=r"^teacher b is named twice: give one of them another slug, and `model`"):
        resolve_teachers(twice)


def test_a_model_without_a_price_is_refused_until_it_has_one() -> None:
    with pytest.raises(
        TeacherError, match=r"^teacher t: no price is known for no/such: check the name, or give input_per"
    ):
        one(model="no/such")
    with pytest.raises(TeacherError, match="no price is known for m"):
        one(model="m", base_url="https://models.example.org/v1", input_per_mtok=1)
    assert one(model="no/such", input_per_mtok=0, output_per_mtok=0).price == Price(0, 0, 0, 0)


TEACHERS = [{"slug": "a", "base_url": LOCAL, "parameters": {"temperature": 0}}, {"slug": "b", "input_per_mtok": 1.5}]


@pytest.mark.parametrize("content", [TEACHERS, {"teachers": TEACHERS}])
def test_a_file_is_a_list_of_teachers_in_json_or_yaml(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "teachers.json"
    file.write_text(json.dumps(content))
    assert load_teachers(file) == TEACHERS


def test_a_yaml_file_may_have_comments(tmp_path: Path) -> None:
    file = tmp_path / "teachers.yaml"
    file.write_text(
        f"# mine\nteachers:\n  - slug: a\n    base_url: {LOCAL}\n    parameters: {{temperature: 0}}\n"
        "  - slug: b  # paid\n    input_per_mtok: 1.5\n"
    )
    assert load_teachers(str(file)) == TEACHERS


@pytest.mark.parametrize("text", ["", "[]", "teachers:\n", "slug: a\n", "just words", "teachers: {a: 1}"])
def test_a_file_without_a_list_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "teachers.yaml"
    file.write_text(text)
    with pytest.raises(TeacherError, match=r"teachers\.yaml holds no list of teachers: write one `- slug: \.\.\.`"):
        load_teachers(file)


@pytest.mark.parametrize("content", [b"a: [1", b"\xff\xfe\xfa", b"!!python/object:os.system {}", b"a: \x00"])
def test_a_file_that_is_no_yaml_is_refused_on_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "teachers.yaml"
    file.write_bytes(content)
    with pytest.raises(TeacherError, match=r"teachers\.yaml is neither YAML nor JSON: ") as raised:
        load_teachers(file)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"api_key_variable": "sk-live-0123456789"},
        {"base_url": "https://host.example/v1?key=sk-live-0123456789"},
        {"base_url": "https://host.example/v1#sk-live-0123456789"},
        {"parameters": "api_key=sk-live-0123456789"},
    ],
)
def test_a_key_in_the_wrong_place_is_not_shown(spec: dict[str, Any]) -> None:
    with pytest.raises(TeacherError) as raised:
        one(**spec)
    assert "0123456789" not in str(raised.value)


def test_a_key_in_a_broken_file_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "teachers.yaml"
    file.write_text("- slug: a\n  api_key: sk-live-0123456789: x\n")
    with pytest.raises(TeacherError, match="at line 2") as raised:
        load_teachers(file)
    assert "0123456789" not in str(raised.value)


def test_parameters_count_in_the_worst_case() -> None:
    prices = {"base_url": LOCAL, "input_per_mtok": 1.0, "output_per_mtok": 0.0}
    bare, loaded = one(**prices), one(**prices, parameters={"x": "y" * 5000})
    assert loaded.worst_case(100) - bare.worst_case(100) >= 5000 * 1000


def test_openrouter_is_told_the_price_that_was_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    priced = {"slug": "openai/gpt-5", "input_per_mtok": 1.5, "output_per_mtok": 12.0}
    (teacher,) = resolve_teachers([priced])
    expected = {"require_parameters": True, "max_price": {"prompt": 1.5, "completion": 12.0}}
    assert teacher.request_settings == {**teacher.settings, "provider": expected}
    # A price that changes does not make another question of it.
    assert "provider" not in teacher.settings

    own = {"data_collection": "deny", "require_parameters": False, "max_price": {"prompt": 1, "completion": 99}}
    (teacher,) = resolve_teachers([{**priced, "parameters": {"provider": own}}])
    assert teacher.request_settings["provider"] == {
        "data_collection": "deny",
        "require_parameters": False,
        "max_price": {"prompt": 1.0, "completion": 12.0},
    }


def test_other_endpoints_are_told_no_price() -> None:
    for url, is_told in ((LOCAL, False), ("https://notopenrouter.ai/v1", False), ("https://eu.openrouter.ai/v1", True)):
        teacher = one(base_url=url, input_per_mtok=1, output_per_mtok=1)
        assert (teacher.request_settings != teacher.settings) == is_told


@pytest.mark.parametrize("wrong", ["cheap", {"max_price": "low"}, {"max_price": {"prompt": "1"}}])
def test_a_provider_that_openrouter_would_not_take_is_refused(wrong: Any) -> None:
    with pytest.raises(TeacherError, match="provider"):
        resolve_teachers([{"slug": "openai/gpt-5", "parameters": {"provider": wrong}}], api_key="k")


def test_the_price_reaches_openrouter(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackTeachers() as server:
        monkeypatch.setattr("composer_replication.teacher_replay.teachers.OPENROUTER", server.url)
        asyncio.run(replay_trace(states_of("one"), ["openai/gpt-5"], api_key="k"))
    (asked,) = server.asked
    price = listed_price("openai/gpt-5", None)
    assert asked.body["provider"]["max_price"] == {"prompt": price.input / NANO, "completion": price.output / NANO}


def test_the_window_is_the_specs_or_the_lists() -> None:
    listed, own, unknown = resolve_teachers(
        [
            "openai/gpt-5",
            {"slug": "own", "model": "openai/gpt-5", "context_window": 1000},
            {"slug": "local", "base_url": "http://127.0.0.1:9/v1"},
        ],
        api_key="k",
    )
    assert listed.context_window is not None
    assert listed.context_window > 100_000
    assert (own.context_window, unknown.context_window) == (1000, None)


NAMES = {
    "claude": [
        "claude-opus-4-5-20251101",
        "anthropic/claude-opus-4.7",
        "anthropic/claude-3.5-sonnet:beta",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "sonnet",
        "anthropic/something-new",
    ],
    "gpt": [
        "gpt-5.1-codex-max",
        "openai/gpt-4o",
        "o3",
        "o4-mini",
        "openai/gpt-oss-120b",
        "chatgpt-4o-latest",
        "azure/gpt-4.1",
    ],
    "deepseek": ["deepseek/deepseek-v4-pro", "accounts/fireworks/models/deepseek-v3", "deepseek-chat"],
    "qwen": ["Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-coder:7b", "qwq-32b", "qwen3-coder"],
    "llama": ["meta-llama/Llama-3.1-8B-Instruct", "llama3.1:8b", "codellama-34b", "nvidia/llama-3.1-nemotron-70b"],
    "mistral": ["mistral-large", "mistralai/Mixtral-8x7B", "codestral-latest", "devstral-small", "ministral-8b"],
    "gemini": ["google/gemini-2.5-pro", "gemma-3-27b-it", "models/gemini-1.5-flash"],
    "kimi": ["moonshotai/kimi-k2", "kimi-k2.5", "moonshot-v1-8k"],
    "glm": ["z-ai/glm-4.7", "glm-4.6", "chatglm3-6b"],
    "grok": ["x-ai/grok-code-fast-1", "grok-4"],
    "composer": ["cursor/composer-2.5"],
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in NAMES.items() for name in names])
def test_a_name_tells_the_family(family: str, name: str) -> None:
    assert model_families(name) == {family}
    assert model_families(name.upper()) == {family}


@pytest.mark.parametrize("name", ["", "my-finetune", "<synthetic>", "o200k", "unknown/model", "gptzero-like", "photon"])
def test_a_name_that_says_nothing_is_of_no_family(name: str) -> None:
    assert not model_families(name)


def test_a_distilled_model_is_of_both_families() -> None:
    assert model_families("deepseek/deepseek-r1-distill-qwen-32b") == {"deepseek", "qwen"}
    assert shared_family(model_families("deepseek/deepseek-r1-distill-qwen-32b"), ["qwen2.5-coder"]) == "qwen"
    assert shared_family(model_families("deepseek/deepseek-r1-distill-qwen-32b"), ["deepseek-v3"]) == "deepseek"
    assert shared_family(model_families("deepseek/deepseek-r1-distill-qwen-32b"), ["llama-3"]) is None


def test_of_several_names_the_first_counts() -> None:
    assert model_families("qwen-2-llama-merge") == {"qwen"}


def test_a_teacher_of_the_students_family() -> None:
    assert shared_family(model_families("anthropic/claude-opus-4.7"), ["claude-opus-4-5-20251101"]) == "claude"
    assert shared_family(model_families("anthropic/claude-opus-4.7"), [None, "gpt-5", "claude-haiku-4-5"]) == "claude"
    assert shared_family(model_families("openai/gpt-5"), ["claude-opus-4-5-20251101"]) is None
    assert shared_family(model_families("openai/gpt-5"), []) is None
    assert shared_family(model_families("other-finetune"), ["my-finetune", None]) is None
