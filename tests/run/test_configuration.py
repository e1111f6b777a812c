"""What a configuration refuses, what it fills in, and how it says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_replication.config import Config, ConfigError, config_schema, load_config, parse_config
from composer_replication.run.folder import first_difference
from composer_replication.run.loading import key_paths
from composer_replication.run.presets import PRESETS

LOGS: dict[str, Any] = {"model": {"name": "smollm2"}, "data": {"traces": "t"}, "training": {"output_dir": "runs/a"}}
ROLLOUTS: dict[str, Any] = {
    "model": {"name": "smollm2"},
    "data": {"prompts": "p.jsonl"},
    "environment": {"class": "house.py:House"},
    "training": {"output_dir": "runs/b"},
}
TASKS: dict[str, Any] = ROLLOUTS | {"data": {}, "environment": {"class": "house_style", "tasks": {"count": 8}}}


def made(base: dict[str, Any], tmp_path: Path, *overrides: str) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(base), encoding="utf-8")
    return load_config(file, overrides)


def problems(base: dict[str, Any], tmp_path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        made(base, tmp_path, *overrides)
    return list(caught.value.problems)


def test_defaults_are_the_vetted_ones(tmp_path: Path) -> None:
    config = made(ROLLOUTS | {"data": {"prompts": "p.jsonl", "pairs": "pairs.jsonl"}}, tmp_path)
    grpo, sdpo, replay = config.channels.grpo, config.channels.sdpo, config.channels.replay
    assert (grpo.loss_type, grpo.scale_rewards, grpo.beta, grpo.num_iterations) == ("dr_grpo", "none", 0.0, 1)
    assert not grpo.mask_truncated_completions
    assert (sdpo.alpha, sdpo.jsd_beta, sdpo.teacher, sdpo.ema_rate) == (0.1, 0.5, "ema", 0.05)
    assert (sdpo.target, sdpo.hint_role, sdpo.routing) == ("erring_turn", "system", "none")
    assert sdpo.gate is not None
    assert (sdpo.gate.min_gap, sdpo.gate.drop_conflicts) == (0.01, True)
    assert (replay.beta, replay.variant, replay.dpo_beta, replay.simpo_beta) == (0.05, "dpo", 0.1, None)
    assert config.data.pairs == (Path("pairs.jsonl"),)
    assert config.model.chat_template == "keep"
    assert (config.optimizer.name, config.optimizer.lr) == ("adamw", 1e-6)


def test_defaults_follow_other_settings(tmp_path: Path) -> None:
    assert made(LOGS, tmp_path, "model.name=a/b").model.chat_template == "keep"
    assert made(LOGS, tmp_path, "model.lora={}").optimizer.lr == 1e-5
    assert made(LOGS, tmp_path, "model.lora={}", "optimizer.lr=3e-4").optimizer.lr == 3e-4
    taid = made(LOGS, tmp_path, "channels.sdpo.wrapper=taid").channels.sdpo.taid
    assert taid is not None
    assert (taid.t_start, taid.t_end, taid.alpha, taid.beta) == (0.4, 1.0, 5e-4, 0.99)
    frozen = made(LOGS, tmp_path, "channels.sdpo.teacher=frozen").channels.sdpo
    assert (frozen.ema_rate, frozen.trust_region_mix) == (None, None)
    simpo = made(LOGS | {"data": {"traces": "t", "pairs": ["p"]}}, tmp_path, "channels.replay.variant=simpo")
    replay = simpo.channels.replay
    assert (replay.simpo_beta, replay.simpo_gamma, replay.dpo_beta) == (2.0, 1.0, None)
    muon = made(LOGS, tmp_path, "optimizer.name=muon").optimizer.muon
    assert muon is not None
    assert (muon.lr, muon.momentum, muon.ns_steps) == (None, 0.95, 5)


def test_channel_one_is_grpo_or_cross_entropy(tmp_path: Path) -> None:
    lm = made(LOGS, tmp_path).channels.lm
    assert lm is not None
    assert (lm.weight, lm.train_on_errors) == (1.0, False)
    assert made(ROLLOUTS, tmp_path).channels.lm is None


def test_a_channel_without_data_is_off_unless_it_was_asked_for(tmp_path: Path) -> None:
    assert made(LOGS, tmp_path).channels.replay.beta == 0.0
    assert made(LOGS, tmp_path).channels.sdpo.alpha == 0.1
    assert problems(LOGS, tmp_path, "channels.replay.beta=0.05") == [
        "channels.replay.beta: 0.05 without data.pairs has no effect; give pairs, or leave it out"
    ]


@pytest.mark.parametrize("base", [LOGS, ROLLOUTS, TASKS])
def test_what_is_resolved_reads_back_the_same(base: dict[str, Any], tmp_path: Path) -> None:
    settings = ["model.lora.r=4", "channels.sdpo.wrapper=taid", "channels.sdpo.gate=null", "training.report_to=wandb"]
    config = made(base, tmp_path, *settings)
    file = tmp_path / "resolved.yaml"
    file.write_text(config.to_yaml(), encoding="utf-8")
    assert load_config(file) == config
    assert load_config(file).to_yaml() == config.to_yaml()


PAIRED: dict[str, Any] = ROLLOUTS | {"data": {"prompts": "p.jsonl", "pairs": "pairs.jsonl"}}


def earned(config: Config) -> dict[str, Any]:
    """The values of the keys that the preset knows."""
    sections = config.as_dict()
    return {key: reduce(lambda at, name: at[name], key.split("."), sections) for key in PRESETS["recommended"]}


def test_a_preset_fills_in_what_is_not_written(tmp_path: Path) -> None:
    plain = made(PAIRED, tmp_path)
    recommended = made(PAIRED, tmp_path, "preset=recommended")
    assert earned(recommended) == {key: one.value for key, one in PRESETS["recommended"].items()}
    assert not any(value == earned(plain)[key] for key, value in earned(recommended).items())
    # Nothing else differs, and without a preset nothing does.
    settings = [f"{key}={json.dumps(value)}" for key, value in earned(recommended).items()]
    assert made(PAIRED, tmp_path, *settings).model_copy(update={"preset": "recommended"}) == recommended
    assert made(PAIRED, tmp_path, "preset=null") == plain
    written = made(PAIRED, tmp_path, "preset=recommended", "channels.sdpo.alpha=0.1", "channels.replay.nll_weight=0.0")
    assert (written.channels.sdpo.alpha, written.channels.replay.nll_weight) == (0.1, 0.0)
    assert written.channels.replay.beta == 0.5


def test_a_preset_gives_no_setting_without_an_effect(tmp_path: Path) -> None:
    without_pairs = made(LOGS, tmp_path, "preset=recommended").channels
    assert (without_pairs.replay.beta, without_pairs.sdpo.alpha) == (0.0, 0.5)
    imitated = made(PAIRED, tmp_path, "preset=recommended", "channels.replay.variant=nll").channels.replay
    assert (imitated.beta, imitated.nll_weight) == (0.5, None)
    empty = made(PAIRED | {"channels": {"replay": None}}, tmp_path, "preset=recommended")
    assert empty.channels.replay.nll_weight == 1.0


@pytest.mark.parametrize("base", [LOGS, PAIRED])
def test_a_preset_that_is_resolved_stays_as_it_is(base: dict[str, Any], tmp_path: Path) -> None:
    config = made(base, tmp_path, "preset=recommended", "channels.replay.variant=simpo")
    file = tmp_path / "resolved.yaml"
    file.write_text(config.to_yaml(), encoding="utf-8")
    assert load_config(file).to_yaml() == config.to_yaml()
    # Its name adds nothing to what is written.
    alone = load_config(file, ["preset=null"])
    assert first_difference(config, alone) is None
    assert first_difference(config, made(base, tmp_path, "channels.replay.variant=simpo")) is not None


def test_an_unknown_preset_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    assert problems(LOGS, tmp_path, "preset=recomended") == [
        "preset: it must be 'recommended', not 'recomended'; did you mean 'recommended'?"
    ]
    assert problems(LOGS, tmp_path, "preset={}") == ["preset: it must be 'recommended', not {}"]


def test_a_margin_of_resting_pairs_comes_with_its_refresh(tmp_path: Path) -> None:
    replay = made(PAIRED, tmp_path, "channels.replay={refresh_pairs_every: 5, refresh_margin: 2}").channels.replay
    assert (replay.refresh_pairs_every, replay.refresh_margin) == (5, 2.0)
    (alone,) = problems(PAIRED, tmp_path, "channels.replay.refresh_margin=2")
    assert alone.startswith("channels.replay: refresh_margin=2 has no effect without refresh_pairs_every: give")
    (missing,) = problems(PAIRED, tmp_path, "channels.replay.refresh_pairs_every=5")
    assert missing.startswith("channels.replay: refresh_margin must be given with refresh_pairs_every=5")
    assert problems(PAIRED, tmp_path, "channels.replay={refresh_pairs_every: 5, refresh_margin: 0}") == [
        "channels.replay.refresh_margin: it must be greater than 0, not 0"
    ]


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "model: {name: a/b}\ndata: {traces: t}\noptimizer:\n  lr: 3e-4\n  eps: 1E-9\n  weight_decay: 0\n"
        "channels:\ntraining: {output_dir: out, steps: 7}\n",
        encoding="utf-8",
    )
    config = load_config(file, ["channels.sdpo.alpha=5e-1", "training.seed=3"])
    assert (config.optimizer.lr, config.optimizer.eps, config.optimizer.weight_decay) == (3e-4, 1e-9, 0.0)
    assert (config.channels.sdpo.alpha, config.training.seed, config.training.steps) == (0.5, 3, 7)


def test_every_problem_is_a_line_with_its_path(tmp_path: Path) -> None:
    found = problems(
        LOGS,
        tmp_path,
        "training.stepps=3",
        "alpha_sdpo=0.3",
        "chanels={}",
        "model.lora.rang=2",
        "training.save_every=1.5",
        "training.seed=soon",
        "training.bf16=1",
        "channels.sdpo.teacher=emma",
        "channels.sdpo.jsd_beta=1.2",
        "channels.grpo=3",
        "channels.replay.dpo_beta=.inf",
        "optimizer.lr=0",
        "optimizer.betas=[0.9]",
        "environment.rewards=[{function: a:b, wait: 2}]",
        "ema_rate=1",
    )
    expected = {
        "training.stepps: there is no such key; did you mean steps?",
        "chanels: there is no such key; did you mean channels?",
        "model.lora.rang: there is no such key; there are r, alpha,",
        "training.save_every: it must be a whole number, not 1.5",
        "training.seed: it must be a whole number, not 'soon'",
        "training.bf16: it must be true or false, not 1",
        "channels.sdpo.teacher: it must be 'ema', 'frozen', 'live' or 'trust_region', not 'emma'; did you mean 'ema'?",
        "channels.sdpo.jsd_beta: it must be at most 1, not 1.2",
        "channels.grpo: it must be a section with keys of its own, not 3",
        "channels.replay.dpo_beta: it must be a finite number, not inf",
        "optimizer.lr: it must be greater than 0, not 0",
        "optimizer.betas[1]: it is missing",
        "environment.rewards[0].wait: there is no such key; did you mean weight?",
        "ema_rate: there is no such key; did you mean channels.sdpo.ema_rate?",
    }
    for line in expected:
        assert any(one.startswith(line) for one in found), (line, found)
    assert any(one.startswith("alpha_sdpo: there is no such key") for one in found)
    assert len(found) == len(expected) + 1
    assert not any("\n" in one for one in found)


@pytest.mark.parametrize(
    ("base", "overrides", "problem"),
    [
        (
            LOGS,
            ["channels.sdpo.alpha=0"],
            "channels: sdpo.alpha and replay.beta are both 0 and there is no environment",
        ),
        (LOGS, ["data.traces=null"], "data: there is nothing to learn from"),
        (LOGS, ["data.traces=null", "data.pairs=p.jsonl"], "data.pairs: pairs need rollouts"),
        (LOGS, ["data.prompts=p.jsonl"], "data.prompts: nothing scores the answers"),
        (LOGS, ["data.traces=null", "channels.sdpo.alpha=0.1"], "channels.sdpo.alpha: 0.1 without data.traces"),
        (LOGS, ["channels.sdpo.taid={}"], "channels.sdpo.taid: it has no effect with wrapper 'none'"),
        (LOGS, ["channels.sdpo.wrapper=entropy_opd", "channels.sdpo.taid.alpha=1"], "channels.sdpo.taid: it has no"),
        (LOGS, ["channels.sdpo.entropy_opd_h_max=1"], "channels.sdpo.entropy_opd_h_max: it has no effect"),
        (LOGS, ["channels.sdpo.teacher=frozen", "channels.sdpo.ema_rate=0.1"], "channels.sdpo.ema_rate: it has no"),
        (LOGS, ["channels.sdpo.trust_region_mix=0.1"], "channels.sdpo.trust_region_mix: it has no effect"),
        (LOGS, ["channels.sdpo.teacher=trust_region", "channels.sdpo.trust_region_mix=0"], "greater than 0"),
        (LOGS, ["channels.sdpo.teacher=trust_region", "channels.sdpo.trust_region_mix=1"], "less than 1"),
        (LOGS, ["channels.sdpo.ema_rate=0"], "channels.sdpo.ema_rate: it must be greater than 0"),
        (
            LOGS,
            ["channels.sdpo.wrapper=taid", "channels.sdpo.taid={t_start: 0.9, t_end: 0.5}"],
            "is greater than t_end",
        ),
        (LOGS, ["channels.replay.simpo_gamma=1"], "channels.replay.simpo_gamma: it has no effect with variant 'dpo'"),
        (LOGS, ["channels.sdpo.routing=srpo"], "channels.sdpo.routing: srpo routes rollouts"),
        (LOGS, ["channels.sdpo.hint_source=sibling"], "channels.sdpo.hint_source: sibling needs rollouts"),
        (LOGS, ["channels.sdpo.importance_clip=2.0"], "channels.sdpo.importance_clip: it weighs tokens of rollouts"),
        (LOGS, ["data.traces=null", "channels.sdpo.alpha_schedule=linear"], "data: there is nothing to learn from"),
        (LOGS, ["channels.sdpo={alpha: 0, alpha_schedule: linear}"], "alpha_end=0.05 has no effect with alpha_sdpo=0"),
        (LOGS, ["channels.grpo.beta=0.1"], "channels.grpo.beta: it applies to rollouts"),
        (LOGS, ["channels.grpo.kl_in_advantage=0.1"], "channels.grpo.kl_in_advantage: it applies to rollouts"),
        (LOGS, ["optimizer.muon={}"], "optimizer.muon: it has no effect with name 'adamw'"),
        (LOGS, ["optimizer.name=muon", "model.lora={}"], "optimizer.name: muon orthogonalises"),
        (LOGS, ["model.dtype=bfloat16"], "model.dtype: weights in bfloat16 lose the small steps"),
        (LOGS, ["optimizer.warmup=2.5"], "optimizer.warmup: 2.5 is neither"),
        (ROLLOUTS, ["data.prompts=null"], "data.prompts: an environment needs prompts"),
        (ROLLOUTS, ["data.prompts=p.csv"], "data.prompts: p.csv must end in .jsonl or .parquet"),
        (ROLLOUTS, ["environment.class=null"], "environment: it has neither a class nor rewards"),
        (ROLLOUTS, ["environment={arguments: {a: 1}, rewards: m:f}"], "environment.arguments: they are for the class"),
        (ROLLOUTS, ["channels.lm.weight=0.5"], "channels.lm: with an environment, channel 1 is channels.grpo"),
        (ROLLOUTS, ["data.traces=t", "channels.sdpo.alpha=0"], "data.traces: with an environment, traces serve"),
        (ROLLOUTS, ["channels.grpo.num_generations=1"], "channels.grpo.num_generations: it must be at least 2"),
        (
            ROLLOUTS,
            ["training.batch_size=6"],
            "6 x 1 = 6, which is not a multiple of channels.grpo.num_generations (8)",
        ),
        (ROLLOUTS, ["channels.sdpo={routing: srpo, alpha: 0}"], "channels.sdpo.routing: srpo leaves failed rollouts"),
        (TASKS, ["data.prompts=p.jsonl"], "environment.tasks: p.jsonl (data.prompts) gives prompts already; remove"),
        (TASKS, ["environment.tasks=null"], "or environment.tasks with one of house_style, python_tasks"),
        (
            TASKS,
            ["environment.class=a.py:House"],
            "for house_style and python_tasks, not for a.py:House; give",
        ),
        (TASKS, ["environment={tasks: {}, rewards: m:f}"], "environment.tasks: they are generated for house_style"),
        (TASKS, ["environment.tasks.split=held_out"], "environment.tasks.split: held_out is for evaluation, of tasks"),
        (TASKS, ["environment.tasks.split=test"], "environment.tasks.split: it must be 'train', 'dev' or 'held_out'"),
        (TASKS, ["environment.tasks.count=0"], "environment.tasks.count: it must be at least 1, not 0"),
        (TASKS, ["environment.tasks.seed=-1"], "environment.tasks.seed: it must be at least 0, not -1"),
    ],
)
def test_combinations_that_cannot_be_meant(
    base: dict[str, Any], overrides: list[str], problem: str, tmp_path: Path
) -> None:
    assert any(problem in one for one in problems(base, tmp_path, *overrides))


@pytest.mark.parametrize(
    ("base", "overrides"),
    [
        (LOGS, ["channels.sdpo.teacher=trust_region", "channels.sdpo.trust_region_mix=0.5"]),
        (LOGS, ["channels.sdpo.alpha=0", "channels.replay.beta=0.1", "data.pairs=[a.jsonl, b.jsonl]"]),
        (ROLLOUTS, ["channels.sdpo.alpha=0"]),
        (ROLLOUTS, ["data.traces=t"]),
        (LOGS, ["channels.lm={weight: 0, train_on_errors: true}"]),
        (ROLLOUTS, ["training.batch_size=4", "training.gradient_accumulation=2"]),
        (ROLLOUTS, ["training.batch_size=6", "channels.grpo.trl.generation_batch_size=24"]),
        (ROLLOUTS, ["channels.grpo.beta=0.1", "model.lora={}"]),
        (LOGS, ["model={name: a/b, dtype: bfloat16, lora: {}}"]),
        (ROLLOUTS, ["channels.grpo.beta=0.1", "model.name=a/b"]),
        (ROLLOUTS, ["environment={rewards: [m:f, {function: effort_penalty, weight: -0.5}]}"]),
        (TASKS, ["environment.tasks={split: dev, arguments: {calls: 2}}", "data.max_prompts=4"]),
        (TASKS, ["environment.tasks=null", "data.prompts=p.jsonl"]),
    ],
)
def test_combinations_that_can(base: dict[str, Any], overrides: list[str], tmp_path: Path) -> None:
    made(base, tmp_path, *overrides)


def test_processes_make_the_batch_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    made(ROLLOUTS, tmp_path, "training.batch_size=4")
    assert (
        "4 x 1 x 2 processes = 8"
        in problems(ROLLOUTS, tmp_path, "training.batch_size=4", "channels.grpo.num_generations=3")[0]
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no sections"),
        ("- 1", "it has no sections"),
        ("model: {", "it is not YAML in line 1"),
        ("model: {name: a}\nmodel: {name: b}\n", "it is not YAML in line 2: 'model' is given twice"),
        ("model: !!python/object/apply:os.getcwd []", "it is not YAML in line 1"),
        ("{}", "model: it is missing"),
    ],
)
def test_files_that_are_none(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert any(problem in one for one in caught.value.problems)
    assert str(file) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml: there is no such file"):
        load_config(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes("model: {name: Größe}".encode("latin-1"))
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        load_config(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.steps", "it must look like training.steps=200"),
        ("=3", "it must look like"),
        ("training..steps=3", "it must look like"),
        ("model.lora.r={", "its value is not YAML"),
        ("model.name.of=3", "model.name is not a section"),
    ],
)
def test_overrides_that_are_none(override: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        made(LOGS, tmp_path, override)
    assert problem in caught.value.problems[0]
    assert caught.value.source == f"--set {override}"


def test_configurations_are_frozen_and_do_not_share_what_was_given() -> None:
    given = {"model": {"name": "a/b"}, "data": {"traces": "t"}, "training": {"output_dir": "o"}}
    config = parse_config(given)
    assert given == {"model": {"name": "a/b"}, "data": {"traces": "t"}, "training": {"output_dir": "o"}}
    with pytest.raises(ValueError, match="frozen"):
        config.training.steps = 3  # type: ignore[misc]


def test_the_schema_describes_every_key() -> None:
    schema = config_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["required"] == ["model", "training"]
    for name, section in {"Config": schema, **schema["$defs"]}.items():
        assert section["additionalProperties"] is False, name
        for key, about in section["properties"].items():
            section_of = schema["$defs"].get(about.get("$ref", "").rpartition("/")[2], {})
            assert about.get("description") or section_of.get("description"), f"{name}.{key}"
    environment = schema["$defs"]["EnvironmentSection"]["properties"]
    assert "class" in environment
    assert {"type": "string"} in environment["rewards"]["anyOf"]
    assert {"type": "string"} in schema["$defs"]["DataSection"]["properties"]["pairs"]["anyOf"]
    assert schema["$defs"]["HintDistillation"]["properties"]["alpha"]["default"] == 0.1


def test_key_paths_are_those_that_users_write() -> None:
    paths = list(key_paths(Config))
    assert {"environment.class", "environment.rewards.weight", "channels.sdpo.taid.t_start", "model.lora.r"} <= {*paths}


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys, composer_replication.config; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_aliases_share_nothing_and_may_not_hold_themselves(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("model: &a {name: a/b}\ndata: {traces: t}\nenvironment: *a\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"environment\.name"):
        load_config(file, ["model.dtype=float32"])
    file.write_text("model: &a {name: a/b, inner: *a}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="an alias refers to a value that contains it"):
        load_config(file)


def test_editors_accept_a_section_whose_keys_are_commented_out(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "model: {name: a/b}\ndata: {traces: t}\nchannels:\n  sdpo:\n  replay:\noptimizer:\ntraining: {output_dir: o}\n",
        encoding="utf-8",
    )
    load_config(file)
    schema = config_schema()
    assert {"type": "null"} in schema["properties"]["optimizer"]["anyOf"]
    assert {"type": "null"} in schema["$defs"]["ChannelsSection"]["properties"]["sdpo"]["anyOf"]
    assert "anyOf" not in schema["properties"]["model"]
