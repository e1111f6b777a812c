"""Models as teachers, over real HTTP: the tokens of `generate`, calls and thoughts, limits, turns and cancellation."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from peft import LoraConfig, get_peft_model
from teacher_replay.serving.loopback import TOOL, USER, complete, model_teacher, post
from transformers import AutoTokenizer

from composer_replication import MissingExtraError
from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.teacher_replay.serving import HuggingFaceTeacher, LocalTeachers, Question
from composer_replication.teacher_replay.serving.model_teacher import choose_device

CALL = {"name": "read_file", "arguments": '{"path": "src/factorial.py"}'}
HISTORY: list[Any] = [
    {"role": "system", "content": "You are a coding agent."},
    {"role": "user", "content": "Please fix the failing test."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "c1", "content": "def factorial(n):\n    return 1"},
]


def ask(one: HuggingFaceTeacher, **parameters: Any) -> Any:
    return asyncio.run(one.answer(Question(**{"messages": USER, "temperature": 0.0, **parameters})))


def test_a_served_greedy_answer_is_that_of_generate(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    as_objects = json.loads(json.dumps(HISTORY))
    as_objects[2]["tool_calls"][0]["function"]["arguments"] = {"path": "src/factorial.py"}
    prompt = tokenizer.apply_chat_template(
        as_objects, tools=[TOOL], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    whole = model.generate(**prompt, max_new_tokens=40, do_sample=False, eos_token_id=tokenizer.eos_token_id)
    new = whole[0, prompt["input_ids"].shape[1] :]
    expected = tokenizer.decode(new, skip_special_tokens=True)
    assert len(set(expected)) > 3
    with LocalTeachers({"m": HuggingFaceTeacher.load(str(tmp_path))}) as server:
        reply = complete(server, messages=HISTORY, tools=[TOOL], temperature=0, max_tokens=40)
    assert reply.choices[0].message.content == expected
    assert reply.usage.prompt_tokens == prompt["input_ids"].shape[1]
    assert reply.usage.completion_tokens == len(new)


def taught(template: str, text: str, tools: list[Any] | None = None) -> HuggingFaceTeacher:
    """A teacher that has learned by heart what to say to `USER`."""
    tokenizer = tiny_tokenizer(template)
    model = tiny_model("qwen2", vocab_size=640)
    prompt = tokenizer.apply_chat_template(USER, tools=tools, add_generation_prompt=True, tokenize=False)
    prompt_ids, said = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompt, text + tokenizer.eos_token)
    )
    ids = torch.tensor([prompt_ids + said])
    labels = ids.clone()
    labels[:, : len(prompt_ids)] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(500):
        optimizer.zero_grad()
        loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    return HuggingFaceTeacher(model, tokenizer)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("qwen2_5", 'So.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "src/a.py"}}\n</tool_call>'),
        ("llama3_1", '{"name": "read_file", "parameters": {"path": "src/a.py"}}'),
    ],
)
def test_a_models_calls_are_real_tool_calls(template: str, text: str) -> None:
    with LocalTeachers({"m": taught(template, text, [TOOL])}) as server:
        choice = complete(server, tools=[TOOL], temperature=0).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == ("So." if template == "qwen2_5" else None)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("read_file", {"path": "src/a.py"})]


def test_a_models_thoughts_are_no_part_of_what_it_says() -> None:
    one = taught("qwen2_5", "<think>\nHm.\n</think>\n\nYes.")
    with LocalTeachers({"m": one}) as server:
        reply = complete(server, temperature=0)
    assert reply.choices[0].finish_reason == "stop"
    assert (reply.choices[0].message.content, reply.choices[0].message.reasoning_content) == ("Yes.", "Hm.")
    tokenizer = tiny_tokenizer("qwen2_5")
    said = tokenizer("<think>\nHm.\n</think>\n\nYes.<|im_end|>", add_special_tokens=False)["input_ids"]
    assert reply.usage.completion_tokens == len(said)


def test_a_prompt_that_opens_the_thinking_is_seen() -> None:
    tokenizer = tiny_tokenizer("qwen2_5")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}<think>\n"
    answer = ask(HuggingFaceTeacher(tiny_model("qwen2", vocab_size=640), tokenizer, max_new_tokens=5))
    assert answer.content == ""
    assert answer.reasoning != ""
    assert answer.finish_reason == "length"


def test_sampling_follows_the_seed_and_leaves_the_global_random_state_alone() -> None:
    one = model_teacher(max_new_tokens=20)
    greedy = ask(one)
    before = torch.get_rng_state()
    drawn = [ask(one, temperature=1.0, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1]
    assert len({greedy.content, drawn[0].content, drawn[2].content}) == 3
    assert ask(one, temperature=1e-40, seed=3) == ask(one, temperature=0.0, seed=4) == greedy
    # A tenth of the mass is the most likely token alone.
    assert ask(one, temperature=0.01, top_p=0.1, seed=3) == greedy
    assert len({ask(one, temperature=1.0).content for _ in range(3)}) > 1


def test_an_answer_ends_at_a_stop_text() -> None:
    one = model_teacher(max_new_tokens=60)
    whole = ask(one)
    assert whole.finish_reason == "length"
    assert whole.completion_tokens == 60
    place = len(whole.content) // 2
    stop = whole.content[place : place + 5]
    assert "\ufffd" not in stop
    stopped = ask(one, stop=("never there", stop))
    assert stopped.content == whole.content[: whole.content.index(stop)]
    assert stopped.finish_reason is None
    assert stopped.completion_tokens < 60


def test_the_longest_answer_is_the_servers_or_the_clients_whichever_is_shorter() -> None:
    one = model_teacher(max_new_tokens=8)
    assert [ask(one, max_tokens=most).completion_tokens for most in (3, 8, 100, None)] == [3, 8, 8, 8]
    with pytest.raises(ValueError, match="max_new_tokens must be a positive whole number, got 0"):
        model_teacher(max_new_tokens=0)


def test_a_prompt_beyond_the_models_positions_is_refused_and_an_answer_ends_at_them() -> None:
    model, tokenizer = tiny_model("qwen2", vocab_size=640, seed=1), tiny_tokenizer("qwen2_5")
    one = HuggingFaceTeacher(model, tokenizer)
    used = ask(one, max_tokens=1).prompt_tokens
    model.config.max_position_embeddings = used + 5
    with LocalTeachers({"m": HuggingFaceTeacher(model, tokenizer)}) as server:
        reply = complete(server, temperature=0)
        assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (5, "length")
        longer = [{"role": "user", "content": USER[0]["content"] + "!" * 5}]
        message = rf"the prompt has {used + 5} tokens, and the model takes {used + 5} with its answer"
        with pytest.raises(openai.BadRequestError, match=message) as caught:
            complete(server, messages=longer, temperature=0)
        assert caught.value.code == "context_length_exceeded"
        assert complete(server, temperature=0).usage.completion_tokens == 5


def test_every_end_of_turn_ends_the_turn_and_no_special_token_is_shown() -> None:
    model, tokenizer = tiny_model("qwen2", vocab_size=640, seed=1), tiny_tokenizer("qwen2_5")
    prompt = tokenizer.apply_chat_template(USER, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    fifth = int(model.generate(**prompt, max_new_tokens=5, do_sample=False)[0, -1])
    assert ask(HuggingFaceTeacher(model, tokenizer, max_new_tokens=20)).completion_tokens == 20
    model.generation_config.eos_token_id = [fifth, 0]
    cut = ask(HuggingFaceTeacher(model, tokenizer, max_new_tokens=20))
    assert cut.completion_tokens <= 5
    assert cut.finish_reason is None
    shown = HuggingFaceTeacher(model, tokenizer)._decoded(tokenizer("a<|im_start|><tool_call>b<|im_end|>")["input_ids"])
    assert shown == "a<tool_call>b"


def test_the_end_of_the_server_stops_the_generation() -> None:
    one = model_teacher(max_new_tokens=3500)
    one._ends.clear()
    generate, started, ended = one._model.generate, threading.Event(), threading.Event()
    tokens: list[int] = []
    one._model.register_forward_hook(lambda *_: tokens.append(1))

    def watched(*arguments: Any, **options: Any) -> Any:
        started.set()
        try:
            return generate(*arguments, **options)
        finally:
            ended.set()

    one._model.generate = watched
    with ThreadPoolExecutor(1) as pool:
        with LocalTeachers({"m": one}) as server:
            reply = pool.submit(post, server, {"messages": USER, "temperature": 0})
            started.wait()
        assert reply.result()[0] == 503
    ended.wait()
    assert len(tokens) < 3000


def test_half_a_surrogate_pair_does_not_stop_a_model() -> None:
    assert (
        ask(model_teacher(max_new_tokens=2), messages=[{"role": "user", "content": "a\ud83d"}]).completion_tokens == 2
    )


def test_what_cannot_be_loaded_is_named_in_one_line(tmp_path: Path) -> None:
    model, tokenizer = tiny_model("qwen2", vocab_size=640), tiny_tokenizer("qwen2_5")
    tokenizer.save_pretrained(tmp_path / "no_model")
    model.save_pretrained(tmp_path / "no_template")
    silent = tiny_tokenizer("qwen2_5")
    silent.chat_template = None
    silent.save_pretrained(tmp_path / "no_template")
    model.save_pretrained(tmp_path / "damaged")
    tokenizer.save_pretrained(tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"\x00" * 100)
    model.config.save_pretrained(tmp_path / "pickled")
    tokenizer.save_pretrained(tmp_path / "pickled")
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    for name in ("nowhere", "no_model", "no_template", "damaged", "pickled"):
        with pytest.raises(ValueError, match=r"^cannot load the model '.*" + name) as caught:
            HuggingFaceTeacher.load(str(tmp_path / name))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="has no chat template"):
        HuggingFaceTeacher.load(str(tmp_path / "no_template"))


def test_what_is_not_installed_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"'peft', which is not installed: pip install .*\[train\]"):
        HuggingFaceTeacher.load(str(tmp_path))


def test_an_adapter_is_served_like_its_merged_model() -> None:
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(tiny_model("qwen2", vocab_size=640, seed=1), lora).double()
    with LocalTeachers({"m": model_teacher(model)}) as server, ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: post(server, {"messages": USER, "temperature": 0, "max_tokens": 20}), "abc"))
    expected = ask(model_teacher(model.merge_and_unload()), max_tokens=20).content
    assert [reply["choices"][0]["message"]["content"] for _, reply in replies] == [expected] * 3
    assert ask(model_teacher(), max_tokens=20).content != expected


def test_devices_and_precisions() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    for wrong in ("gpu", "cuda:99"):
        with pytest.raises(ValueError, match=f"device '{wrong}' cannot be used: ") as caught:
            choose_device(wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="dtype must be one of 'auto', 'float32'"):
        HuggingFaceTeacher.load("x", dtype="int8")


def test_the_precision_is_the_one_asked_for(tmp_path: Path) -> None:
    tiny_model("qwen2", vocab_size=640).to(torch.bfloat16).save_pretrained(tmp_path)
    tiny_tokenizer("qwen2_5").save_pretrained(tmp_path)
    loaded = {dtype: HuggingFaceTeacher.load(str(tmp_path), dtype=dtype, device="cpu") for dtype in ("auto", "float32")}
    assert {name: one._model.dtype for name, one in loaded.items()} == {
        "auto": torch.bfloat16,
        "float32": torch.float32,
    }
    assert ask(loaded["auto"], max_tokens=2, temperature=1.0).completion_tokens == 2
