"""The run directory: what is written, what may be resumed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.config import Config, parse_config
from composer_replication.run.folder import RunDirectory, first_difference, step_of
from composer_replication.trainer.checkpoint import save_state


def config(folder: Path, **sections: Any) -> Config:
    given: dict[str, Any] = {"model": {"name": "a/b"}, "data": {"traces": "t"}, "training": {"output_dir": str(folder)}}
    for name, settings in sections.items():
        given[name] = {**given.get(name, {}), **settings}
    return parse_config(given)


def checkpoint(folder: Path, step: int) -> Path:
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    save_state(made, {"weight": torch.zeros(1)}, {})
    return made


def test_a_run_writes_down_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t-value")
    folder = tmp_path / "deep" / "run"
    given = config(folder, training={"seed": 7})
    RunDirectory(folder).begin(given, 0)
    assert (folder / "config.yaml").read_text() == given.to_yaml()
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["seed"] == 7
    assert {"torch", "transformers", "trl"} <= set(environment["packages"])
    assert {"python", "platform", "cpus", "git_commit_here", "accelerators"} <= set(environment)
    assert "s3cr3t" not in (folder / "environment.json").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "environment.json"]


def test_the_newest_complete_checkpoint_is_resumed(tmp_path: Path) -> None:
    directory, given = RunDirectory(tmp_path), config(tmp_path)
    assert directory.checkpoint(given) is None
    directory.begin(given, 0)
    assert directory.checkpoint(given) is None
    for step in (2, 10, 9):
        checkpoint(tmp_path, step)
    (checkpoint(tmp_path, 11) / "channels-0.json").unlink()  # killed while it was written
    (tmp_path / "checkpoint-12").mkdir()
    assert directory.checkpoint(given) == tmp_path / "checkpoint-10"
    assert step_of(tmp_path / "checkpoint-10") == 10


def test_another_configuration_is_not_resumed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.begin(config(tmp_path), 0)
    checkpoint(tmp_path, 5)
    changed = config(tmp_path, optimizer={"lr": 1e-4}, training={"seed": 3})
    with pytest.raises(
        ValueError, match=r"another configuration: optimizer\.lr was 1e-06 and is 0\.0001; give another"
    ):
        directory.checkpoint(changed)


def test_without_a_checkpoint_there_is_nothing_to_mix_up(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.begin(config(tmp_path), 0)
    assert directory.checkpoint(config(tmp_path, optimizer={"lr": 1e-4})) is None


def test_what_may_differ(tmp_path: Path) -> None:
    first = config(tmp_path)
    free = {"steps": 999, "save_every": 1, "keep_checkpoints": None, "log_every": 7, "report_to": "wandb"}
    assert first_difference(first, config(tmp_path, training=free)) is None
    assert first_difference(first, config(tmp_path / "moved")) is None
    assert first_difference(first, config(tmp_path, training={"batch_size": 4})) == "training.batch_size was 8 and is 4"
    lora = first_difference(first, config(tmp_path, model={"lora": {"r": 4}}))
    assert lora is not None
    assert lora.startswith('model.lora was null and is {"r": 4')
    trl = {"grpo": {"trl": {"top_entropy_quantile": 0.2}}}
    assert first_difference(config(tmp_path, channels=trl), first) == (
        "channels.grpo.trl.top_entropy_quantile was 0.2 and is null"
    )


@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": {"schedule": "cosine"}},
        {"optimizer": {"warmup": 0.1}},
        {"channels": {"sdpo": {"wrapper": "taid"}}},
    ],
)
def test_steps_may_not_differ_where_they_shape_each_step(tmp_path: Path, sections: dict[str, Any]) -> None:
    first, longer = config(tmp_path, **sections), config(tmp_path, **sections, training={"steps": 200})
    assert first_difference(first, longer) == "training.steps was 100 and is 200"


def test_runs_that_must_not_be_resumed(tmp_path: Path) -> None:
    directory, never = RunDirectory(tmp_path), config(tmp_path, training={"resume": "never"})
    assert directory.checkpoint(never) is None
    directory.begin(never, 0)
    with pytest.raises(ValueError, match=r"training\.output_dir: .* holds a run; give another directory"):
        directory.checkpoint(never)
    (tmp_path / "config.yaml").unlink()
    checkpoint(tmp_path, 3)
    with pytest.raises(ValueError, match=r"holds checkpoints but no config\.yaml"):
        directory.checkpoint(config(tmp_path))


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"training\.output_dir: .*/file/run cannot be made: Not a directory"):
        RunDirectory(tmp_path / "file" / "run").make()


def test_a_checkpoint_by_its_path(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "other", 4)
    given = config(tmp_path / "run", training={"resume": str(made)})
    assert RunDirectory(tmp_path / "run").checkpoint(given) == made
    with pytest.raises(ValueError, match=r"training\.resume: nowhere is not a checkpoint"):
        RunDirectory(tmp_path).checkpoint(config(tmp_path, training={"resume": "nowhere"}))


def test_a_config_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {name: a/b}\nnew_section: {}\n")
    with pytest.raises(ValueError, match=r"new_section: there is no such key.*another version"):
        RunDirectory(tmp_path).checkpoint(config(tmp_path))


def test_samples_that_will_be_written_again_are_dropped(tmp_path: Path) -> None:
    directory, given = RunDirectory(tmp_path), config(tmp_path)
    directory.begin(given, 0)
    directory.add_samples({"step": step, "completion": "Größe"} for step in (1, 2, 3))
    with directory.samples_file.open("a") as file:
        file.write('{"step": 3, "compl')
    directory.begin(given, 2)
    assert [json.loads(line)["step"] for line in directory.samples_file.read_text().splitlines()] == [1, 2]
    directory.begin(given, 0)
    assert directory.samples_file.read_text() == ""
