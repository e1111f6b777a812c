"""What a model was trained on, and how tasks and sessions that it has seen are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from evaluation.runs import given, run_folder
from run.training_material import json_lines, pair, trace_folder

from composer_replication.envs.house_style import make_tasks
from composer_replication.evaluation.models import checkpoint_of, load_evaluated
from composer_replication.evaluation.overlap import (
    check_sessions,
    check_tasks,
    trained_by_run,
    trained_on,
    training_gap,
)
from composer_replication.ingestion.store import load_traces
from composer_replication.run.held_out import Sessions, is_held_out
from composer_replication.teacher_replay.pair_files import save_preference


def in_environment(prompts: Path, **data: Any) -> dict[str, Any]:
    return given(
        data={"prompts": str(prompts), **data},
        environment={"class": "composer_replication.envs.house_style:HouseStyle"},
    )


def test_tasks_of_training_are_refused_by_their_content(tmp_path: Path) -> None:
    trained = make_tasks("train", 6)
    run = run_folder(tmp_path / "run", in_environment(json_lines(tmp_path / "tasks.jsonl", *trained)))
    data = trained_by_run(str(run / "checkpoint-1"))
    assert data is not None
    assert data == trained_by_run(str(run))
    assert check_tasks(make_tasks("held_out", 6), data) == 6
    # Neither another id, nor another order of keys, nor a column that the other file does not have makes a new task.
    copy = dict(reversed({**trained[3], "task_id": "mine", "difficulty": 3}.items()))
    copy["prompt"] = [dict(reversed(message.items())) for message in copy["prompt"]]
    with pytest.raises(
        ValueError, match=r"^1 of 7 tasks are among those that .*run was trained on; the first is task mi"
    ):
        check_tasks([*make_tasks("held_out", 6), copy], data)
    # The same words about other files are another task.
    assert check_tasks([{**trained[3], "files": [["other.md", "x"]]}], data) == 6


def test_only_the_tasks_that_were_read_count_and_parquet_is_read_as_well(tmp_path: Path) -> None:
    tasks = make_tasks("train", 4)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(tasks), tmp_path / "tasks.parquet")
    run = run_folder(tmp_path / "run", in_environment(tmp_path / "tasks.parquet", max_prompts=2))
    data = trained_by_run(str(run))
    assert data is not None
    assert check_tasks(tasks[2:], data) == 2
    with pytest.raises(ValueError, match="1 of 1 tasks"):
        check_tasks(tasks[1:2], data)
    with pytest.raises(ValueError, match="1 of 1 tasks"):
        check_tasks(tasks[3:], trained_on(tmp_path / "tasks.parquet", tasks=True))


def test_generated_tasks_are_generated_again(tmp_path: Path) -> None:
    environment = {"class": "house_style", "tasks": {"count": 5, "seed": 3, "arguments": {"calls": 2}}}
    data = trained_by_run(str(run_folder(tmp_path / "run", given(environment=environment), rewards=[0.5])))
    assert data is not None
    assert check_tasks(make_tasks("held_out", 6, calls=2), data) == 5
    assert check_tasks(make_tasks("train", 6, seed=3, calls=2)[5:], data) == 5
    with pytest.raises(ValueError, match="5 of 6 tasks"):
        check_tasks(make_tasks("train", 6, seed=3, calls=2), data)
    assert training_gap(data, 0.25)["gap"] == 0.25


def test_training_tasks_that_are_gone_are_no_permission(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", in_environment(tmp_path / "gone.jsonl"))
    data = trained_by_run(str(run))
    assert data is not None
    with pytest.raises(ValueError, match=r"run: data.prompts: .*gone.jsonl: there is no such file; .*--trained-on"):
        check_tasks(make_tasks("held_out", 1), data)


def test_the_gap_is_that_of_the_last_ten_steps(tmp_path: Path) -> None:
    config = in_environment(json_lines(tmp_path / "tasks.jsonl", *make_tasks("train", 2)))
    run = run_folder(tmp_path / "run", config, rewards=[0.0] * 5 + [0.6] * 5 + [0.8] * 5)
    data = trained_by_run(str(run))
    assert data is not None
    assert training_gap(data, 0.3) == pytest.approx({"training_reward": 0.7, "held_out_reward": 0.3, "gap": 0.4})
    # With other rewards besides, the environment's own counts.
    with (run / "metrics.jsonl").open("a") as file:
        for _ in range(10):
            file.write(json.dumps({"step": 16, "reward": 5.0, "rewards/HouseStyle/mean": 0.5}) + "\n")
        file.write(json.dumps({"step": 16, "train_runtime": 3.0}) + '\n{"step": 17, "rew')
    assert training_gap(data, 0.5)["gap"] == pytest.approx(0.0)
    (run / "metrics.jsonl").unlink()
    assert training_gap(data, 0.5) == {}


def test_a_run_stands_for_its_newest_complete_checkpoint(tmp_path: Path) -> None:
    config = in_environment(tmp_path / "tasks.jsonl")
    run = run_folder(tmp_path / "run", config, steps=3)
    assert checkpoint_of(str(run)) == str(run / "checkpoint-3")
    assert checkpoint_of(str(run / "checkpoint-3")) == str(run / "checkpoint-3")
    assert checkpoint_of("some/model") == "some/model"
    assert trained_by_run("some/model") is None
    (run / "checkpoint-3" / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match="run without a complete checkpoint"):
        checkpoint_of(str(run))


def test_what_is_no_model_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^cannot load the model '.*': [^\n]+$"):
        load_evaluated(str(tmp_path), device="cpu")
    with pytest.raises(ValueError, match="there is no such directory"):
        load_evaluated(str(tmp_path / "none" / "such"), device="cpu")


def test_models_that_are_compared_share_a_chat_template(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", in_environment(tmp_path / "tasks.jsonl"))
    _, own = load_evaluated(str(run / "checkpoint-1"), device="cpu")
    own.chat_template = "another"
    assert load_evaluated(str(run / "checkpoint-1"), device="cpu", like=own)[1] is own
    own.add_tokens(["<one more>"])
    assert load_evaluated(str(run / "checkpoint-1"), device="cpu", like=own)[1] is not own


def test_sessions_of_training_are_refused(tmp_path: Path) -> None:
    folder = trace_folder(tmp_path, sessions=8)
    sessions = Sessions(load_traces(folder))
    names = [sessions.of(trace.trace_id) for trace in load_traces(folder)]
    held_out = [name for name in names if is_held_out(name, 0.5)]
    assert 0 < len(held_out) < 8
    logs = {"traces": str(folder)}
    all_of_it = trained_by_run(str(run_folder(tmp_path / "all", given(data=logs))))
    a_part = trained_by_run(str(run_folder(tmp_path / "part", given(data={**logs, "held_out": 0.5}))))
    assert all_of_it is not None
    assert a_part is not None
    assert check_sessions(held_out, a_part, sessions) == 0
    with pytest.raises(ValueError, match=r"8 sessions are among those that .*part was trained on.*data\.held_out"):
        check_sessions(names, a_part, sessions)
    with pytest.raises(
        ValueError, match=rf"^{len(held_out)} of {len(held_out)} sessions .*the first is {held_out[0]}:"
    ):
        check_sessions(held_out, all_of_it, sessions)
    with pytest.raises(ValueError, match="8 of 8 sessions"):
        check_sessions(names, trained_on(folder, tasks=False), sessions)


def test_sessions_of_pairs_are_refused_too_and_pairs_without_one_are_counted(tmp_path: Path) -> None:
    file = json_lines(tmp_path / "pairs.jsonl", pair(0, state_id="k:a::0003"))
    data = trained_on(file, tasks=False)
    with pytest.raises(ValueError, match=r"1 of 2 sessions .* the first is k:a"):
        check_sessions(["k:b", "k:a"], data, Sessions())
    save_preference([pair(0), pair(1)], tmp_path / "trl.jsonl")  # type: ignore[list-item]
    assert check_sessions(["k:a"], trained_on(tmp_path / "trl.jsonl", tasks=False), Sessions()) == 2
    with pytest.raises(ValueError, match=r"--trained-on: .*nothing is neither a run nor a file of tasks"):
        trained_on(tmp_path / "nothing", tasks=True)
