"""Where keys come from, in which order, and that they show up nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.teacher_replay.teachers import (
    MissingKeyError,
    TeacherError,
    find_key,
    read_env_file,
    resolve_teachers,
)

VARIABLE = "A_TEACHERS_KEY"
SECRET = "sk-or-v1-0123456789abcdef"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with nothing in it, and an environment without keys."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    return tmp_path


def hermes(home: Path, text: str) -> None:
    (home / ".hermes").mkdir()
    (home / ".hermes" / ".env").write_text(text)


def test_the_environment_comes_before_the_env_file_and_that_before_hermes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_file = home / "keys.env"
    assert find_key(VARIABLE) is None
    hermes(home, f"{VARIABLE}=from-hermes\n")
    assert find_key(VARIABLE) == "from-hermes"
    env_file.write_text("ANOTHER=x\n")
    assert find_key(VARIABLE, env_file) == "from-hermes"
    env_file.write_text(f"{VARIABLE}=from-file\n")
    assert find_key(VARIABLE, env_file) == "from-file"
    assert find_key(VARIABLE) == "from-hermes"
    monkeypatch.setenv(VARIABLE, " from-environment\n")
    assert find_key(VARIABLE, env_file) == "from-environment"


def test_a_place_with_nothing_in_it_is_passed_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env_file = home / "keys.env"
    env_file.write_text(f"{VARIABLE}=\n")
    monkeypatch.setenv(VARIABLE, "  ")
    hermes(home, f"{VARIABLE}=''\n")
    assert find_key(VARIABLE, env_file) is None
    (home / ".hermes" / ".env").write_text(f"{VARIABLE}=from-hermes")
    assert find_key(VARIABLE, env_file) == "from-hermes"


def test_an_env_file_that_is_not_there_is_named_whoever_has_the_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    with pytest.raises(FileNotFoundError, match=r"no-such\.env: there is no such file"):
        find_key(VARIABLE, home / "no-such.env")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        find_key(VARIABLE, home)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=abc", "abc"),
        ("  KEY = abc  ", "abc"),
        ("export KEY=abc", "abc"),
        ("export\tKEY=abc", "abc"),
        ('KEY="abc"', "abc"),
        ("KEY='abc'", "abc"),
        ('KEY="abc" # mine', "abc"),
        ("KEY='a \"b\" c'", 'a "b" c'),
        ('KEY="a # b"', "a # b"),
        ("KEY=abc # mine", "abc"),
        ("KEY=abc#d", "abc#d"),
        ("KEY=a=b==", "a=b=="),
        ("KEY=", ""),
        ("KEY=''", ""),
        ("KEY= # nothing yet", ""),
        ("\ufeffKEY=abc", "abc"),
    ],
)
def test_a_line_is_read_as_a_shell_would(home: Path, line: str, value: str) -> None:
    file = home / "keys.env"
    file.write_text(f"{line}\r\n")
    assert read_env_file(file) == {"KEY": value}


@pytest.mark.parametrize("line", ["# KEY=abc", "KEY", "", "1KEY=abc", "two words=abc", "=abc"])
def test_other_lines_are_passed_over(home: Path, line: str) -> None:
    file = home / "keys.env"
    file.write_bytes(line.encode() + b"\n\xff\xfe\nLAST=x\nLAST=y\n")
    assert read_env_file(file) == {"LAST": "y"}


def test_a_key_is_not_shown_with_its_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    spec = {"slug": "t", "base_url": "http://127.0.0.1:1/v1", "api_key_variable": VARIABLE}
    (teacher,) = resolve_teachers([spec])
    assert teacher.api_key == SECRET
    assert SECRET not in repr(teacher)
    assert SECRET not in str(teacher.settings)
    teacher.require_key()


def test_a_missing_key_is_an_error_that_names_its_variable_and_the_places() -> None:
    spec = {"slug": "t", "base_url": "http://127.0.0.1:1/v1", "api_key_variable": VARIABLE}
    (teacher,) = resolve_teachers([spec])
    with pytest.raises(
        MissingKeyError, match=rf"teacher t needs a key: set {VARIABLE}, .*--env-file .*~/\.hermes/\.env"
    ):
        teacher.require_key()
    (keyless,) = resolve_teachers([{**spec, "api_key_variable": None}])
    keyless.require_key()
    assert keyless.api_key is None


@pytest.mark.parametrize("key", ["two words", "a\x01b", "gänse", "a\u2028b"])
def test_what_no_header_can_hold_is_refused_without_being_repeated(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, key)
    spec = {"slug": "t", "base_url": "http://127.0.0.1:1/v1", "api_key_variable": VARIABLE}
    with pytest.raises(TeacherError, match=f"teacher t: the key in {VARIABLE} holds") as raised:
        resolve_teachers([spec])
    assert key not in str(raised.value)


def test_the_key_given_as_an_argument_is_for_openrouter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "from-environment")
    monkeypatch.setenv(VARIABLE, "of-its-own")
    local = "http://127.0.0.1:1/v1"
    teachers = resolve_teachers(
        [
            "openai/gpt-5",
            {"slug": "openai/gpt-5-mini", "base_url": "https://openrouter.ai/api/v1/"},
            {"slug": "another-account", "model": "openai/gpt-5", "api_key_variable": VARIABLE},
            {"slug": "no-key", "model": "openai/gpt-5", "api_key_variable": None},
            {"slug": "here", "base_url": local},
            {"slug": "here-too", "base_url": local, "api_key_variable": VARIABLE},
            {
                "slug": "elsewhere",
                "base_url": "https://openrouter.ai.example.org/api/v1",
                "input_per_mtok": 1,
                "output_per_mtok": 1,
            },
        ],
        api_key=f" {SECRET}\n",
    )
    assert [teacher.api_key for teacher in teachers] == [SECRET, SECRET, "of-its-own", None, None, "of-its-own", None]
    assert [one.api_key for one in resolve_teachers(["openai/gpt-5"])] == ["from-environment"]
    assert [one.api_key for one in resolve_teachers(["openai/gpt-5"], api_key="")] == ["from-environment"]
