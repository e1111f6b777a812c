"""Rollouts out of TRL's own tool loop: what it parses, executes and concatenates, hinted at the right places."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.scripted_rollouts import PROMPT, padded, play

from composer_replication._tiny import tiny_model
from composer_replication.channels import at, sdpo_pairs
from composer_replication.chat_templates import TemplatedTokenizer, tool_definitions
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.trainer.rollout_hints import find_hint_sites, hinted_batch
from composer_replication.trainer.rollouts import Rollout


def read_file(path: str) -> str:
    """Read a file of the project.

    Args:
        path: the file.
    """
    if path != "a.py":
        raise FileNotFoundError(f"File does not exist: {path}")
    return "print(1)"


def grpo_trainer(tokenizer: Any, directory: Path) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model = tiny_model("qwen2", vocab_size=640)
    arguments = GRPOConfig(
        output_dir=str(directory),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=600,
        report_to=[],
        use_cpu=True,
    )
    return GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": PROMPT}] * 2),
        processing_class=copy.deepcopy(tokenizer),  # TRL writes to it
        tools=[read_file],
    )


def rolled_out(trainer: Any, tokenizer: Any, scripts: Sequence[Sequence[str]]) -> list[Rollout]:
    """TRL's rollouts of a model that says what is written; the limit on completions cuts as it does in training."""
    spoken = [0] * len(scripts)
    speaking = list(range(len(scripts)))

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        said = []
        # The loop goes on with the rollouts that called something, in order: those that have something left to say.
        speaking[:] = [index for index in speaking if spoken[index] < len(scripts[index])]
        assert len(speaking) == len(prompt_ids)
        for index in speaking:
            text = scripts[index][spoken[index]] + tokenizer.eos_token
            said.append(tokenizer(text, add_special_tokens=False)["input_ids"][: trainer.max_completion_length])
            spoken[index] += 1
        return said, None

    trainer._generate_single_turn = generate
    trainer._sync_tool_dicts = [{"read_file": read_file}] * len(scripts)
    trainer._async_tool_dicts = [{}] * len(scripts)
    prompt_ids, completion_ids, tool_mask, completions, *_ = trainer._generate([PROMPT] * len(scripts))
    tools = tool_definitions(trainer.tools)
    return [
        Rollout(PROMPT, messages, *ids, tools)
        for messages, *ids in zip(completions, prompt_ids, completion_ids, tool_mask, strict=True)
    ]


def written(tokenizer: Any, name: str, **arguments: Any) -> str:
    """A call in the words of the model's family."""
    if "<tool_call>" in tokenizer.chat_template:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    return json.dumps({"name": name, "parameters": arguments})


def test_sites_in_trls_own_rollouts(tokenizer: Any, tmp_path: Path) -> None:
    right = written(tokenizer, "read_file", path="a.py")
    unreadable = right.replace('"a.py"', "")
    scripts = [
        [
            written(tokenizer, "open_file", path="a.py"),
            written(tokenizer, "read_file", file="a.py"),
            written(tokenizer, "read_file", path="b.py"),
            right,
            "It prints 1.",
        ],
        [right, unreadable],
        [right, "It prints 1."],
    ]
    trainer = grpo_trainer(tokenizer, tmp_path)
    rollouts = rolled_out(trainer, tokenizer, scripts)
    bound = TemplatedTokenizer(tokenizer, trainer.chat_template, trainer.chat_template_kwargs)
    sites, counts = find_hint_sites(rollouts, tokenizer=bound, hint_generator=as_collator_hint(LayeredHints()))
    assert counts == {"sites": 4, "no_error": 1}
    assert [[site.kind for site in own] for own in sites] == [
        ["tool_not_found", "type_error", "file_not_found"],
        ["json_decode"],
        [],
    ]
    assert "Available tools: `read_file`" in sites[0][0].hint
    assert '{"path": "<string>"}' in sites[0][1].hint
    assert '{"path": "<string>"}' in sites[1][0].hint
    found = hinted_batch(padded(rollouts, tokenizer.pad_token_id), sites, pad_token_id=tokenizer.pad_token_id)
    assert found is not None
    batch, site_of_pair = found
    student_N2, teacher_N2 = sdpo_pairs(batch)
    for number, (script, turn, site) in enumerate(
        [(0, 0, sites[0][0]), (0, 1, sites[0][1]), (0, 2, sites[0][2]), (1, 1, sites[1][0])]
    ):
        own = site_of_pair == number
        said = scripts[script][turn] + tokenizer.eos_token
        assert tokenizer.decode(at(batch["input_ids"], student_N2[own])) == said
        assert tokenizer.decode(at(batch["ctx_teacher_input_ids"], teacher_N2[own])) == said
        text = tokenizer.decode(batch["ctx_teacher_input_ids"][number])
        hint = tokenizer.apply_chat_template([*PROMPT, {"role": "system", "content": site.hint}], tokenize=False)
        header = tokenizer.decode(rollouts[0].ids[sites[0][0].header : sites[0][0].spans[0][0]])
        assert f"{hint[hint.index(site.hint) :]}{header}{said}" in text


def test_the_scripted_rollouts_of_other_tests_are_trls(tokenizer: Any, tmp_path: Path) -> None:
    scripts = [[written(tokenizer, "open_file", path="a.py"), written(tokenizer, "read_file", path="a.py"), "One."]]
    (rollout,) = rolled_out(grpo_trainer(tokenizer, tmp_path), tokenizer, scripts)
    assert play(tokenizer, rollout.messages, tools=rollout.tools) == rollout


def test_a_tool_text_beyond_the_limit_leaves_a_call_without_its_result(qwen_tokenizer: Any, tmp_path: Path) -> None:
    trainer = grpo_trainer(qwen_tokenizer, tmp_path)
    call = written(qwen_tokenizer, "open_file", path="a.py")
    trainer.max_completion_length = len(qwen_tokenizer(call)["input_ids"]) + 1
    (rollout,) = rolled_out(trainer, qwen_tokenizer, [[call]])
    _, counts = find_hint_sites([rollout], tokenizer=qwen_tokenizer, hint_generator=lambda kind, meta: "x")
    assert counts == {"no_error": 1}
    trainer.max_completion_length -= 4
    (rollout,) = rolled_out(trainer, qwen_tokenizer, [[call]])
    _, counts = find_hint_sites([rollout], tokenizer=qwen_tokenizer, hint_generator=lambda kind, meta: "x")
    assert counts == {"truncated": 1}
