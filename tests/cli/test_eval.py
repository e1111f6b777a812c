"""`composer-replication eval` as a user meets it: tables, JSON, files, comparisons, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from evaluation.runs import given, run_folder
from peft import LoraConfig, get_peft_model
from run.training_material import json_lines, model_folder, pair, rollout_config, trace_folder

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.cli import app as cli
from composer_replication.envs.house_style import make_tasks
from composer_replication.ingestion.store import load_traces
from composer_replication.run.held_out import is_held_out
from composer_replication.teacher_replay.pair_files import save_preference

LAMP = '''
class Lamp:
    def reset(self, prompt, brightness):
        self._bright = brightness

    def switch(self) -> str:
        """Switch the lamp."""

    def get_reward(self):
        return self._bright


class NoSandbox(Lamp):
    def __init__(self):
        raise RuntimeError("there is no sandbox to be had here: install bubblewrap")
'''


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, another one, an environment with tasks, and traces."""
    folder = tmp_path_factory.mktemp("evaluated")
    model_folder(folder / "model")
    tiny_model("qwen2", vocab_size=640, hidden_size=32, seed=2).save_pretrained(folder / "base")
    tiny_tokenizer().save_pretrained(folder / "base")
    (folder / "lamp.py").write_text(LAMP)
    rows = [{"prompt": f"Switch lamp {n} on.", "brightness": float(n % 2)} for n in range(8)]
    json_lines(folder / "tasks.jsonl", *rows)
    trace_folder(folder, sessions=10)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()  # what making the files said
    code = cli.run(["eval", *map(str, arguments), "--device", "cpu"])
    return code, *capsys.readouterr()


def lamps(folder: Path) -> list[object]:
    return ["--env", f"{folder / 'lamp.py'}:Lamp", "--tasks", folder / "tasks.jsonl", "--max-tokens", 4]


def cells(out: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    return {name: rest for name, *rest in rows}


def test_an_environment_gives_pass_rates_with_intervals(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*lamps(folder), "--n", 6, "--k", 2, "--samples", 3]
    code, out, err = run(capsys, folder / "model", *asked, "-o", tmp_path / "out", "--save-samples")
    assert (code, err) == (0, "")
    table = cells(out)
    assert table["pass@1"][:1] == table["reward"][:1] == ["6"]
    assert table["pass@1"][1].startswith("0.500 [")
    assert table["pass@2"] == ["6", "0.500 [0.188, 0.812]"]  # Wilson's of 3 in 6: tasks passed always or never
    assert f"MODEL: {folder / 'model'}" in out
    outcomes = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert len(outcomes) == 18
    assert outcomes[0]["messages"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["settings"]["samples"] == 3
    assert summary["measures"]["pass@2"]["method"] == "wilson"
    # Saved results are compared with as the model itself is.
    code, out, _ = run(capsys, folder / "base", *asked, "-o", tmp_path / "base", "--json")
    assert (code, json.loads(out)) == (0, json.loads((tmp_path / "base" / "summary.json").read_text()))
    live, kept = (
        json.loads(run(capsys, folder / "model", *asked, "--json", "--against", one)[1])
        for one in (folder / "base", tmp_path / "base")
    )
    assert live == kept
    assert live["against"]["model"] == str(folder / "base")
    assert live["differences"]["pass@1"]["p_value"] == 1.0
    assert live["differences"]["tokens_per_episode"]["clusters"] == 6


def test_logs_are_evaluated_on_the_sessions_that_training_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = folder / "traces"
    names = {one.trace_id: one.session_id or "" for one in load_traces(traces)}
    held_out = {session for session in names.values() if is_held_out(session, 0.4)}
    assert 1 < len(held_out) < 10
    pairs = json_lines(tmp_path / "pairs.jsonl", *(pair(0, state_id=f"{name}::0000") for name in names))
    config = given(data={"traces": str(traces), "pairs": str(pairs), "held_out": 0.4})
    trained = run_folder(tmp_path / "run", config)
    asked = [trained, "--traces", traces, "--pairs", pairs]
    code, out, err = run(capsys, *asked, "--against", folder / "base", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    table = cells(out)
    assert list(table) == [
        "pairs preferred",
        "pairs preferred per token",
        "chosen logprob",
        "rejected logprob",
        "corrections preferred",
        "corrections preferred per token",
        "correction logprob",
        "erring turn logprob",
        "erring turn hinted logprob",
        "good turns perplexity",
    ]
    assert {row[0] for row in table.values()} == {str(len(held_out))}
    assert all(len(row) == 5 and row[3][0] in "+-" and 0 < float(row[4]) <= 1 for row in table.values())
    assert f"MODEL: {trained / 'checkpoint-1'}; against: {folder / 'base'}" in out
    outcomes = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert {one["session"] for one in outcomes} == held_out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["settings"]["held_out_share"] == 0.4
    # What was trained on is refused, however it is asked for.
    for option in (["--all"], ["--held-out-share", 0.9]):
        code, _, err = run(capsys, *asked, *option)
        assert (code, err.count("\n")) == (1, 1)
        assert "sessions are among those that" in err
    gone = run_folder(tmp_path / "moved", given(data={"traces": "no/longer/here"}))
    code, _, err = run(capsys, gone, "--traces", traces)
    assert (code, err.count("\n")) == (1, 1)
    assert "data.traces: no/longer/here holds no traces" in err
    assert "--trained-on" in err
    code, out, _ = run(capsys, folder / "model", "--traces", traces, "--json")
    assert json.loads(out)["settings"] | {"tokenizer": ""} == {
        "traces": str(traces),
        "pairs": [],
        "held_out_share": None,
        "sessions": 10,
        "tokenizer": "",
    }
    code, _, err = run(capsys, folder / "model", "--traces", traces, "--held-out-share", 0)
    assert (code, "none of 10 is held out with a share of 0; raise --held-out-share" in err) == (1, True)


def test_pairs_that_name_no_session_go_by_their_opening_and_those_left_out_are_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"state_messages": [{"role": "user", "content": "Hello."}, *pair(0)["state_messages"]]}
    save_preference([pair(0), pair(1), pair(2, **same), pair(3, **same)], tmp_path / "trl.jsonl")  # type: ignore[list-item]
    file = json_lines(tmp_path / "p.jsonl", pair(0, chosen=""), pair(1))
    asked = [folder / "model", "--pairs", tmp_path / "trl.jsonl", "--pairs", file]
    code, out, _ = run(capsys, *asked)
    assert code == 0
    assert cells(out)["pairs preferred"][0] == "4"
    assert "warning: some pairs are left out: 1 empty side" in out
    code, out, _ = run(capsys, *asked[:1], "--pairs", file, "--trained-on", tmp_path / "trl.jsonl")
    assert code == 0
    assert "4 training pairs do not say which session they come from: overlap with them is not checked" in out


def test_adapters_and_merged_models_alike(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model("qwen2", vocab_size=640, hidden_size=32, seed=2)
    model.name_or_path = str(folder / "base")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    tiny_tokenizer().save_pretrained(tmp_path / "merged")
    asked = ["--traces", folder / "traces", "--json"]
    adapter, merged, base = (
        json.loads(run(capsys, one, *asked)[1])["measures"]["erring_turn_logprob"]["value"]
        for one in (tmp_path / "adapter", tmp_path / "merged", folder / "base")
    )
    assert adapter == pytest.approx(merged, abs=1e-4)
    assert abs(adapter - base) > 1e-2
    code, out, _ = run(capsys, tmp_path / "adapter", *lamps(folder), "--n", 2, "--json")
    assert (code, json.loads(out)["measures"]["pass@1"]["value"]) == (0, 0.5)


def test_a_run_is_evaluated_beside_its_training_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = rollout_config(tmp_path)
    config["environment"] = {"class": config["environment"]["class"]}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    assert cli.run(["train", str(file)]) == 0
    asked = [tmp_path / "run", "--env", config["environment"]["class"], "--max-tokens", 8]
    code, _, err = run(capsys, *asked, "--tasks", tmp_path / "prompts.jsonl")
    assert (code, err.count("\n")) == (1, 1)
    assert "4 of 4 tasks are among those that" in err
    assert "the first is task" in err
    assert "(Open door 0.)" in err
    other = json_lines(tmp_path / "other.jsonl", {"prompt": "Open door 9."})
    code, out, _ = run(capsys, *asked, "--tasks", other)
    assert code == 0
    assert "reward in the last training steps 0.000, here 0.000" in out
    assert f"MODEL: {tmp_path / 'run' / 'checkpoint-2'}" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give --env, or logs with --traces or --pairs"),
        (("--env", "house_style", "--traces", "{folder}/traces"), 2, "give --env, or logs"),
        (("--env", "nowhere"), 2, "--env: there is no environment 'nowhere': give house_style"),
        (("--env", "no.module:Thing", "--tasks", "{folder}/tasks.jsonl"), 1, "--env: there is no module no.module"),
        (("--env", "{folder}/lamp.py:Lamp"), 1, "has no tasks of its own: give a file of them with --tasks"),
        (("--env", "house_style", "--n", 0), 2, "greater than or equal to 1"),
        (("--env", "house_style", "--k", 3, "--samples", 2), 2, "--k 3 needs as many samples of each task"),
        (("--env", "house_style", "--env-arg", "house"), 2, "--env-arg: 'house' must look like KEY=VALUE"),
        (("--env", "house_style", "--save-samples"), 2, "--save-samples needs a folder to write to"),
        (("--env", "house_style", "--tasks", "gone.jsonl"), 2, "gone.jsonl"),
        (
            ("--env", "{folder}/lamp.py:NoSandbox", "--tasks", "{folder}/tasks.jsonl"),
            1,
            "there is no sandbox to be had",
        ),
        (("--traces", "gone"), 2, "gone"),
        (("--traces", "{folder}/model"), 1, "holds no traces"),
        (("--traces", "{folder}/traces", "--all", "--held-out-share", 0.2), 2, "not both"),
        (("--pairs", "{folder}/lamp.py"), 1, "must be .jsonl or .parquet"),
        (("--traces", "{folder}/traces", "--against", "{folder}"), 1, "cannot load the model"),
        (("--env", "house_style", "--trained-on", "{folder}/train.jsonl"), 1, "2 of 100 tasks are among those"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...], code: int, message: str
) -> None:
    json_lines(folder / "train.jsonl", *make_tasks("train", 3), *make_tasks("held_out", 2))
    given_code, out, err = run(capsys, folder / "model", *(str(one).format(folder=folder) for one in arguments))
    assert (given_code, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("error: ")
    assert message in err


def test_what_is_no_checkpoint(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, message in (
        (tmp_path, "the folder has no config.json"),
        (tmp_path / "gone", "there is no such directory"),
    ):
        code, _, err = run(capsys, model, *lamps(folder))
        assert (code, err.count("\n"), message in err) == (1, 1, True)
