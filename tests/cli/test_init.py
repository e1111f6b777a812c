"""`composer-replication init`, and its examples run as their headers say: every command, with a tiny model."""

from __future__ import annotations

import json
import os
import shlex
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from run.training_material import model_folder, trace_folder
from teacher_replay.loopback_teacher import LoopbackTeachers

from composer_replication import examples
from composer_replication.cli import app as cli
from composer_replication.config import load_config
from composer_replication.examples import EXAMPLES, header
from composer_replication.run.environment import load_object
from composer_replication.traces import ToolCall

FOLDER = Path(examples.__file__).parent
TINY = (
    *("training.steps=1", "training.batch_size=2", "training.gradient_accumulation=1", "training.device=cpu"),
    *("training.gradient_checkpointing=false", "channels.grpo.num_generations=2", "channels.sdpo.gate=null"),
    "channels.grpo.max_completion_length=16",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.run([*map(str, arguments)])
    return code, *capsys.readouterr()


def commands(configuration: Path) -> list[list[str]]:
    """The commands of a configuration's header, as a shell would give them to `composer-replication`."""
    lines = [line.strip() for line in header(configuration).splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("composer-replication ")]
    return [[os.path.expanduser(word) for word in line[1:]] for line in words]  # noqa: PTH111 - as a shell does it


def tiny(tmp_path: Path) -> list[str]:
    settings = [f"model.name={model_folder(tmp_path / 'model')}", *TINY]
    return [word for setting in settings for word in ("--set", setting)]


def logged(run_directory: str) -> dict[str, Any]:
    first: dict[str, Any] = json.loads(Path(run_directory, "metrics.jsonl").read_text().splitlines()[0])
    return first


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_files_of_an_example_are_written_and_the_next_commands_shown(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "init", name)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in here.iterdir()) == sorted(EXAMPLES[name])
    for file in EXAMPLES[name]:
        assert (here / file).read_bytes() == (FOLDER / name / file).read_bytes()
    assert out.startswith(f"wrote {', '.join(EXAMPLES[name])}\n")
    assert f"  composer-replication train {EXAMPLES[name][0]} --dry-run" in out
    assert "cd " not in out
    config = load_config(here / EXAMPLES[name][0])
    assert config.preset == "recommended"
    # What is written does not stand in the preset's way.
    assert (config.channels.sdpo.alpha, config.channels.replay.nll_weight) == (0.5, 1.0)


def test_logs_is_what_is_written_without_a_name_and_a_folder_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "init", "-o", "new/one")
    assert (code, [path.name for path in Path("new/one").iterdir()]) == (0, ["train.yaml"])
    assert "cd new/one\n" in out


def test_a_file_that_is_there_is_kept_and_nothing_is_half_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = here / "house.py"
    mine.write_text("class House: ...")
    code, out, err = run(capsys, "init", "environment")
    assert (code, out) == (1, "")
    assert err == "error: house.py: already there, and nothing was written; --force overwrites\n"
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [("house.py", "class House: ...")]
    assert run(capsys, "init", "environment", "--force")[0] == 0
    assert mine.read_bytes() == (FOLDER / "environment" / "house.py").read_bytes()
    (here / "train.yaml").mkdir()
    assert run(capsys, "init", "--force")[::2] == (
        1,
        "error: train.yaml: a folder is in the way; nothing was written\n",
    )


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["environmnt"], 2, "'environmnt' is not one of 'logs', 'environment'"),
        (["-o", "file"], 2, "'file' is a file"),
        (["-o", "file/below"], 1, "file/below/train.yaml: "),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], expected: int, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("")
    code, out, err = run(capsys, "init", *arguments)
    assert (code, out) == (expected, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in here.iterdir()] == ["file"]


def test_every_file_is_package_data() -> None:
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["composer_replication"]
    for name, files in EXAMPLES.items():
        there = {path.name for path in (FOLDER / name).iterdir() if path.is_file()}
        assert there == set(files)
        assert all(any(fnmatch(f"examples/{name}/{file}", pattern) for pattern in patterns) for file in files)


def test_the_logs_example_runs_as_its_header_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "init", "logs")
    projects = tmp_path / "home" / ".claude" / "projects"
    projects.parent.mkdir(parents=True)
    trace_folder(tmp_path / "made").with_name("logs").rename(projects)
    ingest, replay, pairs, dry_run, train, without_pairs = commands(Path("train.yaml"))
    assert run(capsys, *ingest, "--processes", 1)[0] == 0

    # Not replayed yet: the error names both ways on, and one of them is in the header.
    code, _, err = run(capsys, *train, *tiny(tmp_path))
    assert (code, len(err.splitlines())) == (1, 1)
    assert "data.pairs: pairs.jsonl: there is no such file; make it with `composer-replication pairs`" in err
    plan = run(capsys, *without_pairs, "--dry-run", "--json", *tiny(tmp_path))[1]
    assert [channel["live"] for channel in json.loads(plan)["channels"]] == [True, True, False]
    elsewhere = ["--set", "training.output_dir=runs/without"]
    assert run(capsys, *without_pairs, *tiny(tmp_path), *elsewhere)[0] == 0
    assert "channels/replay/active_tokens" not in logged("runs/without")

    call = ToolCall("c", "Read", {"file_path": "other.py"}).message()
    with LoopbackTeachers(lambda _: {"content": "", "tool_calls": [call]}) as server:
        prices = {"input_per_mtok": 1, "output_per_mtok": 1}
        teachers = {"teachers": [server.spec("one", **prices), server.spec("two", **prices)]}
        Path("teachers.yaml").write_text(yaml.safe_dump(teachers))
        assert run(capsys, *replay, "--teachers", "teachers.yaml")[0] == 0
    assert run(capsys, *pairs)[0] == 0
    code, plan, _ = run(capsys, *dry_run, "--json", *tiny(tmp_path))
    assert (code, [channel["live"] for channel in json.loads(plan)["channels"]]) == (0, [True, True, True])
    assert run(capsys, *train, *tiny(tmp_path))[0] == 0
    for channel in ("lm", "sdpo", "replay"):
        assert logged("runs/logs")[f"channels/{channel}/active_tokens"] > 0


def test_the_environment_example_runs_as_its_header_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "init", "environment")
    dry_run, train = commands(Path("train_environment.yaml"))
    code, plan, _ = run(capsys, *dry_run, "--json", *tiny(tmp_path))
    assert (code, [channel["live"] for channel in json.loads(plan)["channels"]]) == (0, [True, True, False])
    assert run(capsys, *train, *tiny(tmp_path))[0] == 0
    assert "rewards/House/mean" in logged("runs/house")
    (sample, *_) = map(json.loads, Path("runs/house/samples.jsonl").read_text().splitlines())
    asked, _, said = sample["prompt"][-1]["content"].partition("\n\n")
    assert asked in Path("tasks.jsonl").read_text()
    assert said.startswith("The rooms are: ")


def test_the_house_can_be_solved_and_explains_what_fails() -> None:
    house = load_object(f"{FOLDER / 'environment' / 'house.py'}:House", "environment.class")()
    for task in map(json.loads, (FOLDER / "environment" / "tasks.jsonl").read_text().splitlines()):
        assert house.reset(**task) == (
            f"The rooms are: {', '.join(task['rooms'])}. Lamps that are on: {', '.join(task['lit']) or 'none'}."
        )
        assert house.get_reward() < 1
        for room in sorted(set(task["wanted"]) - set(task["lit"])):
            assert house.switch_on(room=room) == f"The lamp in the {room} is on."
        for room in sorted(set(task["lit"]) - set(task["wanted"])):
            assert house.switch_off(room=room) == f"The lamp in the {room} is off."
        assert house.get_reward() == 1
    with pytest.raises(ValueError, match=r"^There is no room 'moon'\. The rooms are: porch, hall, cellar\.$"):
        house.switch_on("moon")
    with pytest.raises(ValueError, match=r"^The lamp in the hall is on already\.$"):
        house.switch_on("hall")
    assert house.get_reward() == pytest.approx(0.8)
