"""The scripts in examples/, run as a reader would run them."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest
import torch
from processes import environment, wait_for

from composer_replication.diloco.replica import Replica
from composer_replication.diloco.settings import DilocoSection
from composer_replication.envs.house_style import right_calls


def script(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by its name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return script("log_to_gradient")


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    return script("reference_loop")


def test_a_session_file_becomes_a_step_with_three_live_channels(example: ModuleType, tmp_path: Path) -> None:
    step = example.take_step(example.write_session(tmp_path / "session.jsonl"))
    assert all(tokens > 0 for tokens in step.loss.active_tokens.values()), step.loss.active_tokens
    for loss in (step.loss.lm_ce, step.loss.sdpo_jsd, step.loss.trace_replay_dpo):
        assert math.isfinite(float(loss.detach()))
        assert float(loss.detach()) > 0
    assert float(step.loss.trace_replay_dpo.detach()) == pytest.approx(math.log(2), abs=1e-5)  # it is its own reference
    assert math.isfinite(step.gradient_norm)
    assert step.gradient_norm > 0
    assert step.weight_change > 0
    assert (step.stats.rows, step.stats.sites, step.stats.pairs) == (1, 1, 1)


def test_the_hint_falls_on_the_edit_that_failed(example: ModuleType, tmp_path: Path) -> None:
    step = example.take_step(example.write_session(tmp_path / "session.jsonl"))
    (turn,) = step.hinted_turns
    assert turn.startswith('<tool_call>\n{"name": "Edit"')
    assert "return net * tax" in turn
    assert turn.endswith("<|im_end|>")
    (context,) = step.hinted_contexts
    assert context.endswith(turn)
    hint = context.removesuffix(turn).rsplit("<|im_start|>system\n", 1)[1]
    assert hint.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert hint.startswith("Read `/shop/invoice.py` and copy the text to replace exactly as it stands there")
    assert "not found in file" not in context  # the failure itself is still to come


def test_the_command_prints_a_table(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    printed = capsys.readouterr().out
    assert "hint self-distillation" in printed
    assert "copy the text to replace exactly" in printed


def test_loop_all_channels_are_live_the_hints_are_taken_in_and_calls_get_better(loop: ModuleType) -> None:
    steps = list(loop.train(18))
    for channel in ("grpo", "sdpo", "replay"):
        assert sum(step.active_tokens[channel] > 0 for step in steps) > 12, channel
    first, last = steps[:6], steps[-6:]
    assert fmean(step.losses["sdpo"] for step in last) < 0.7 * fmean(step.losses["sdpo"] for step in first)
    assert fmean(step.losses["replay"] for step in last) < fmean(step.losses["replay"] for step in first)
    assert fmean(step.pass_rate for step in last) > 0.1 + fmean(step.pass_rate for step in first)


def test_loop_all_channels_are_live(loop: ModuleType) -> None:
    steps = list(loop.train(2))
    for channel in ("grpo", "sdpo", "replay"):
        assert sum(step.active_tokens[channel] for step in steps) > 0, channel
    assert all(0 < step.pass_rate < 1 for step in steps)


def test_loop_channels_without_a_failed_call_are_off(loop: ModuleType) -> None:
    accepted = loop.Rollout({}, [1], [2], 1.0, 0.0, None)
    assert loop.hint_distillation(None, None, [torch.zeros(1, 3)], [accepted]) == (0.0, 0)
    assert loop.preference(None, None, None, [accepted]) == (0.0, 0)


def test_loop_what_is_no_call_earns_nothing_and_gets_no_hint(loop: ModuleType) -> None:
    task = {"files": [["notes.md", ""]], "steps": [["delete", "notes.md"]]}
    ((tool, arguments),) = right_calls(task["steps"])
    right = f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"
    for said in (
        "Done.",
        "<tool_call>\n{broken\n</tool_call>",
        "<tool_call>[]</tool_call>",
        right.replace(json.dumps(arguments), "7"),
        right.replace("arguments", "argument"),
    ):
        assert loop.judge(task, said) == (0.0, None), said
    assert loop.judge(task, right) == (1.0, None)
    (argument,) = arguments
    reward, hint = loop.judge(task, right.replace(f'"{argument}"', '"file"'))
    assert reward == 0.0
    assert f"{tool}({argument})" in hint
    assert loop.judge(task, right.replace(tool, "reset"))[1].startswith("There is no tool named `reset` here")


def lone_replica(folder: Path) -> Replica:
    settings = DilocoSection(replicas=1, backend="store", store=str(folder), run_id="run", sync_every=1)
    return Replica(settings, 0, folder)


def test_loop_a_replica_that_came_back_ends_with_the_others(
    loop: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = lone_replica(tmp_path)
    start = replica.start
    monkeypatch.setattr(replica, "start", lambda: start(5))  # as if it had healed
    assert len(list(loop.train(6, replica=replica))) == 1
    replica.close()


def test_loop_a_replica_ends_with_the_shared_parameters(
    loop: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, policy = lone_replica(tmp_path), loop.laboratory_model()
    monkeypatch.setattr(loop, "laboratory_model", lambda: policy)
    steps = loop.train(2, replica=replica)
    next(steps)
    shared = [parameter.clone() for parameter in policy.parameters()]
    replica.rest()  # the second step is after the last sync
    assert len(list(steps)) == 1
    assert all(torch.equal(*both) for both in zip(shared, policy.parameters(), strict=True))
    replica.close()


def test_loop_two_replicas_one_of_which_is_killed_end_at_the_same_round(loop: ModuleType, tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "examples" / "reference_loop.py"
    arguments = [sys.executable, str(program), "--steps", "12", "--replicas", "2", "--store", str(tmp_path)]
    settings = DilocoSection(replicas=2, backend="store", store=str(tmp_path), run_id="reference", sync_every=6)
    replica = Replica(settings, 0, tmp_path / "replica-0")
    second = subprocess.Popen(arguments, env=environment(REPLICA_RANK="1"))
    steps = loop.train(12, replica=replica)
    for _ in range(6):
        next(steps)
    file = tmp_path / "replica-1" / "rounds.jsonl"
    wait_for(file.exists)
    second.kill()  # it cannot have ended: this one does not go on
    second.wait()
    second = subprocess.Popen(arguments, env=environment(REPLICA_RANK="1"))
    assert len(list(steps)) == 6
    replica.close()
    assert second.wait() == 0
    last = [json.loads(one.read_text().splitlines()[-1]) for one in (tmp_path / "replica-0" / "rounds.jsonl", file)]
    assert [(one["round"], one["step"], one["digest"]) for one in last] == [(1, 12, last[0]["digest"])] * 2


def test_loop_two_replicas_end_with_the_same_parameters(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "examples" / "reference_loop.py"
    arguments = [sys.executable, str(program), "--steps", "6", "--replicas", "2", "--store", str(tmp_path)]
    replicas = [
        subprocess.Popen(arguments, env=environment(REPLICA_RANK=str(rank)), stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    printed = [replica.communicate()[0] for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0]
    assert printed[0] != printed[1]  # other tasks
    (first,), (second,) = ((tmp_path / f"replica-{rank}" / "rounds.jsonl").read_text().splitlines() for rank in (0, 1))
    assert json.loads(first)["digest"] == json.loads(second)["digest"]
    assert json.loads(first)["participants"] == 2
