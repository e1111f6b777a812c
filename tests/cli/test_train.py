"""`composer-replication train` as a user meets it: what it says before it trains, and what it refuses."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from run.training_material import json_lines, logs_config, model_folder, pair, rollout_config, trace_folder

from composer_replication._tiny import tiny_tokenizer
from composer_replication.cli import app as cli
from composer_replication.config import load_config


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()  # what making the files said
    code = cli.run(["train", *map(str, arguments)])
    return code, *capsys.readouterr()


def written(tmp_path: Path, config: dict[str, Any]) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def test_a_dry_run_shows_config_data_memory_and_channels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = logs_config(tmp_path)
    json_lines(tmp_path / "pairs.jsonl", pair(0), pair(1, chosen=""), pair(2))
    file = written(tmp_path, config)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(capsys, file, "--dry-run", "--set", "channels.sdpo.alpha=0.3")
    assert (code, err) == (0, "")
    resolved, _, rest = out.partition("\n\n")
    assert yaml.safe_load(resolved) == load_config(file, ["channels.sdpo.alpha=0.3"]).as_dict()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in rest.splitlines() if "│" in line]
    for row in (
        ["traces", "2"],
        ["error turns with hint", "2"],
        ["usable", "2"],
        ["empty side", "1"],
        ["lm", "1", "yes", "no environment: imitates 84 tokens of the assistant"],
        ["sdpo", "0.3", "yes", "2 of 2 error turns in the traces get a hint"],
        ["replay", "0.05", "yes", "2 of 3 pairs can be used"],
    ):
        assert row in cells
    assert [row[0] for row in cells if len(row) == 2][-7:] == [
        "weights",
        "gradients",
        "optimizer",
        "teacher",
        "reference",
        "activations",
        "in all, per device",
    ]
    assert "this is an estimate" in rest
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_says_why_a_channel_is_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = logs_config(tmp_path)
    config["data"] = {"traces": str(trace_folder(tmp_path / "clean", errors=False))}
    code, out, _ = run(capsys, written(tmp_path, config), "--dry-run", "--json")
    plan = json.loads(out)
    assert code == 0
    assert [(one["channel"], one["live"], one["why"]) for one in plan["channels"]] == [
        ("lm", True, "no environment: imitates 132 tokens of the assistant"),
        ("sdpo", False, "no error in the traces"),
        ("replay", False, "there are no pairs (data.pairs)"),
    ]
    assert plan["config"]["channels"]["replay"]["beta"] == 0.0
    assert plan["memory_estimate_bytes"]["total"] > 0
    assert plan["resumes_from_step"] == 0


def test_a_dry_run_counts_what_the_length_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = logs_config(tmp_path)
    talk = [{"role": role, "content": f"Show me file {n}. " * 6} for n in range(9) for role in ("user", "assistant")]
    long = pair(0, state_messages=[*talk, {"role": "user", "content": "And this one."}])
    json_lines(Path(config["data"]["pairs"]), long, pair(1))
    file = written(tmp_path, config)

    def plan(*settings: str) -> Any:
        arguments = [part for setting in settings for part in ("--set", setting)]
        return json.loads(run(capsys, file, "--dry-run", "--json", *arguments)[1])["data"]

    whole = plan()
    assert not any("left_out" in name or "shortened" in name for name in (*whole["traces"], *whole["pairs"]))
    cut = plan("data.max_length=130", "data.max_windows=1", "channels.replay.max_length=200")
    traces, pairs = cut["traces"], cut["pairs"]
    assert (traces["rows"], traces["conversations_shortened"]) == (2, 2)
    assert min(traces["messages_left_out"], traces["turns_beyond_max_windows"], traces["tokens_left_out"]) >= 2
    assert traces["hints_lost_to_length"] == whole["traces"]["hinted_turns"] == 2
    assert (pairs["usable"], pairs["prompts_shortened"]) == (2, 1)
    assert 0 < pairs["prompt_messages_left_out"] < len(talk)
    code, _, err = run(capsys, file, "--dry-run", "--set", "data.max_length=20")
    assert code == 1
    assert "tokens, and a row holds 20: raise max_seq_len (data.max_length)" in err.replace("\n", " ")


def test_a_dry_run_with_an_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, rollout_config(tmp_path))
    both = run(capsys, file, "--dry-run", "--json", "--set", "channels.sdpo.hint_source=both")[1]
    assert [one["why"] for one in json.loads(both)["channels"]] == [
        "4 prompts, 2 rollouts of each, with kept caches",
        "errors and successful siblings of the rollouts",
        "there are no pairs (data.pairs)",
    ]
    penalty = ("--set", "channels.grpo.trl.repetition_penalty=1.1")
    plan = json.loads(run(capsys, file, "--dry-run", "--json", *penalty)[1])
    assert plan["channels"][0]["why"] == "4 prompts, 2 rollouts of each, by TRL's loop"
    code, _, err = run(capsys, file, "--dry-run", *penalty, "--set", "channels.grpo.rollout_loop=cached")
    assert code == 1
    assert "rollout_loop='cached' cannot be used: sampling uses RepetitionPenaltyLogitsProcessor" in err
    off = run(capsys, file, "--dry-run", "--json", "--set", "channels.sdpo.alpha=0")[1]
    assert json.loads(off)["channels"][1]["why"] == "its weight is 0"
    pairs = json_lines(tmp_path / "pairs.jsonl", pair())
    code, _, err = run(capsys, file, "--dry-run", "--set", f"data.pairs={pairs}")
    assert code == 1
    assert "data.pairs: 1 of 1 pairs call tools without showing any definitions" in err
    assert run(capsys, file, "--dry-run", "--set", f"data.pairs={pairs}", "--set", "channels.replay.beta=0")[0] == 0


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--schema")
    assert (code, err) == (0, "")
    assert "HintDistillation" in json.loads(out)["$defs"]


def test_a_run_and_the_run_after_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, logs_config(tmp_path, steps=1))
    code, out, err = run(capsys, file)
    assert code == 0
    *table, last, model = out.splitlines()
    assert last == f"step 1 of 1: {tmp_path / 'run'}"
    assert model == f"model, for AutoModelForCausalLM.from_pretrained: {tmp_path / 'run' / 'checkpoint-1'}"
    channels = [[cell.strip() for cell in line.split("│")[1:3]] for line in table if "│" in line]
    assert channels == [["lm", "1 of 1"], ["sdpo", "1 of 1"], ["replay", "1 of 1"]]
    lines = [line for line in err.splitlines() if line.startswith("step ")]
    assert len(lines) == 1
    assert re.fullmatch(
        r"step 1/1 \| loss \S+ \| lm \S+ \(84 tokens\) \| sdpo .* tokens\) \| replay .* tokens\)", lines[0]
    )
    planned = json.loads(run(capsys, file, "--dry-run", "--json", "--set", "training.steps=2")[1])
    assert planned["resumes_from_step"] == 1
    code, out, err = run(capsys, file, "--json", "--set", "training.steps=2")
    result = json.loads(out)
    assert (code, result["steps"], result["resumed_from_step"]) == (0, 2, 1)
    assert result["checkpoint"] == str(tmp_path / "run" / "checkpoint-2")
    assert result["metrics"]["train_loss"] > 0
    assert "step " not in err
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "1")
        assert run(capsys, file, "--json")[:2] == (0, "")  # the first process speaks for all
    _, out, err = run(capsys, file)
    assert "already at step 2, and training.steps is 1: nothing was trained; raise training.steps above 2" in out
    assert "step 2 of 1" not in out
    assert "step " not in err
    _, out, _ = run(capsys, file, "--set", "training.steps=2")
    assert "already finished at step 2: nothing was trained; raise training.steps to go on" in out
    assert out.splitlines()[-1].endswith(str(tmp_path / "run" / "checkpoint-2"))
    assert "would train nothing: finished at step 2: " in run(capsys, file, "--dry-run")[1]
    code, out, err = run(capsys, file, "--set", "training.steps=2", "--set", "channels.sdpo.alpha=0.7")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("error: training.output_dir: ")
    assert "channels.sdpo.alpha was 0.1 and is 0.7" in err


def test_an_environment_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, written(tmp_path, rollout_config(tmp_path, steps=1)))
    assert code == 0
    assert f"step 1 of 1: {tmp_path / 'run'}\n" in out
    assert re.search(r"^step 1/1 \| loss \S+ \| grpo .* \| reward \d", err, re.MULTILINE)
    assert "experimental" not in err
    assert (tmp_path / "run" / "samples.jsonl").exists()


def test_every_problem_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = logs_config(tmp_path)
    config["chanels"] = config.pop("channels")
    config["training"]["steps"] = "many"
    file = written(tmp_path, config)
    code, out, err = run(capsys, file)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"error: {file}: training.steps: it must be a whole number, not 'many'",
        f"error: {file}: chanels: there is no such key; did you mean channels?",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        ([], 2, "CONFIG is missing"),
        (["nowhere.yaml"], 2, "nowhere.yaml: there is no such file"),
        (["FILE", "--set", "training.steps"], 2, "--set training.steps: it must look like"),
        (
            ["FILE", "--set", "channels.replay.beta=0.1", "--set", "data.pairs=[]"],
            2,
            "channels.replay.beta: 0.1 without",
        ),
        (["FILE", "--dry"], 2, "No such option"),
        (["FILE", "--set", "model.name=./nowhere"], 1, "model.name: ./nowhere: there is no such directory"),
        (["FILE", "--set", "model.name=BARE"], 1, "has no chat template of its own"),
        (["FILE", "--set", "model.name=SHORT"], 1, "has 640 tokens and the model rows for 600"),
        (["FILE", "--set", "model.chat_template=PLAIN"], 1, "renders no tool calls, and data.traces needs them"),
        (["FILE", "--set", "model.chat_template=qwen3"], 1, "or model.chat_template: qwen3_training in a"),
        (["FILE", "--set", "data.traces=nowhere"], 1, "data.traces: nowhere holds no traces"),
        (
            ["FILE", "--set", "data.pairs=nowhere.jsonl"],
            1,
            "data.pairs: nowhere.jsonl: there is no such file; make it with `composer-replication pairs`, or set "
            "data.pairs to null",
        ),
        (
            ["FILE", "--set", "data.max_length=5000"],
            1,
            "data.max_length: 5,000 tokens are more than",
        ),
        (["FILE", "--set", "channels.replay.max_length=5000"], 1, "channels.replay.max_length: 5,000 tokens are more"),
        (["FILE", "--set", "model.lora.target_modules=no_such"], 1, "no_such"),
        (["FILE", "--set", "training.output_dir=FILE"], 1, "is a file; give a directory"),
        (["FILE", "--set", "training.resume=nowhere"], 1, "training.resume: nowhere is not a checkpoint"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    arguments: list[str], expected: int, message: str, dry: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "FILE": written(tmp_path, logs_config(tmp_path)),
        "BARE": model_folder(tmp_path / "bare", template=None),
        "SHORT": model_folder(tmp_path / "short", vocab_size=600),
        "PLAIN": tmp_path / "plain.jinja",
    }
    places["PLAIN"].write_text("{% for m in messages %}{{ m['role'] + ': ' + (m['content'] or '') }}\n{% endfor %}")
    before = sorted(tmp_path.rglob("*"))
    given = [str(places[one]) if one in places else one for one in arguments]
    for name, place in places.items():
        given = [one.replace(f"={name}", f"={place}") for one in given]
    code, out, err = run(capsys, *given, *(["--dry-run"] if dry else []))
    assert (code, out) == (expected, "")
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("environment.class=nowhere.py:Doors", "environment.class: nowhere.py: there is no such file"),
        ("environment.class=DOORS:NoReset", "has no method reset"),
        ("environment.class=DOORS:Locked", "Locked cannot be made: OSError: the key is lost"),
        (
            "environment.class=DOORS:Untyped",
            "Untyped: shut cannot be made a tool: Argument name is missing a type hint",
        ),
        (
            "environment.class=DOORS:Undocumented",
            "Undocumented: shut cannot be made a tool: Cannot generate JSON schema",
        ),
        ("environment.class=DOORS:HalfDocumented", "HalfDocumented: shut cannot be made a tool: Cannot generate"),
        ("environment.class=DOORS:PromptOnly", "reset does not take the columns of data.prompts (prompt, door)"),
        ("environment.class=DOORS:Scale", "Scale: get_reward is called without arguments: missing"),
        ("environment.arguments.wort=3", "environment.arguments"),
        ("environment.rewards=[no_such_module:f]", "environment.rewards[0]: there is no module no_such_module"),
        ("environment={class: DOORS:Unscored}", "has no get_reward, and there are no rewards"),
        ("environment={class: DOORS:unscored}", "has no get_reward, and there are no rewards"),
        ("channels.grpo.max_completion_length=5000", "channels.grpo.max_completion_length: 5,000 tokens are more"),
        ("channels.grpo.trl.use_vlm=true", "channels.grpo.trl.use_vlm: trl.GRPOConfig has no such setting"),
        ("channels.grpo.trl.use_vllm=true", "channels.grpo.trl.use_vllm: vllm is not installed: pip install"),
        ("channels.grpo.trl.generation_batch_size=3", "channels.grpo.trl: generation_batch_size (3) must be divisible"),
        ("channels.grpo.trl.report_to=wandb", "channels.grpo.trl.report_to: this has a key of its own"),
        ("data.prompts=nowhere.jsonl", "data.prompts: nowhere.jsonl: there is no such file"),
        ("data.prompts=QUESTIONS", "row 1: `prompt` is missing (there are question, answer)"),
        ("model.chat_template=PLAIN", "renders no tool calls, and environment.class needs them"),
        ("model.chat_template=STRICT", "model.chat_template: the chat template refuses the conversation: one task"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_environments_that_cannot_be_used(
    setting: str,
    message: str,
    dry: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "length" not in setting:  # positions are the model's
        monkeypatch.setattr("composer_replication.run.launch.load_model", _no_weights)
    monkeypatch.setattr(import_module("trl.import_utils"), "is_vllm_available", lambda: False)
    config = rollout_config(tmp_path)
    json_lines(tmp_path / "prompts.jsonl", {"prompt": "Open door 1.", "door": 1})
    places = {"DOORS": tmp_path / "doors.py", "PLAIN": tmp_path / "plain.jinja"}
    places["PLAIN"].write_text("{% for m in messages %}{{ m['role'] + ': ' + (m['content'] or '') }}\n{% endfor %}")
    places["STRICT"] = tmp_path / "strict.jinja"
    refusal = "{% for m in messages[1:] if m.role in ('system', 'user') %}{{ raise_exception('one task') }}{% endfor %}"
    places["STRICT"].write_text(refusal + tiny_tokenizer().chat_template)
    places["QUESTIONS"] = json_lines(tmp_path / "questions.jsonl", {"question": "Which door?", "answer": "2"})
    for name, place in places.items():
        setting = setting.replace(name, str(place))
    file = written(tmp_path, config)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(capsys, file, "--set", setting, *(["--dry-run"] if dry else []))
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert [one for one in sorted(tmp_path.rglob("*")) if "__pycache__" not in one.parts] == before


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        ("wandb", "training.report_to: wandb cannot be used: WandbCallback requires wandb to be installed"),
        ("weights", "training.report_to: transformers knows no tracker 'weights'; it knows azure_ml, comet_ml, mlflow"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("config", [logs_config, rollout_config])
def test_trackers_that_cannot_be_used(
    config: Any,
    dry: bool,
    tracker: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("composer_replication.run.launch.load_model", _no_weights)
    monkeypatch.setattr("transformers.integrations.integration_utils.is_wandb_available", lambda: False)
    file = written(tmp_path, config(tmp_path))
    code, _, err = run(capsys, file, "--set", f"training.report_to={tracker}", *(["--dry-run"] if dry else []))
    assert code == 1
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def _no_weights(_: Any) -> None:
    raise AssertionError("what was wrong could have been said before the weights were loaded")
