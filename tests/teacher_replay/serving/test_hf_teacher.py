"""Models as teachers, over real HTTP: the tokens of `generate`, calls and thoughts, limits, turns and cancellation."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from peft import LoraConfig, get_peft_model
from teacher_replay.serving.loopback import USER, client, post, request_bytes
from transformers import AutoModelForCausalLM, AutoTokenizer

from composer_replication import MissingExtraError
from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.teacher_replay.serving import HuggingFaceTeacher, LocalTeachers, Question
from composer_replication.teacher_replay.serving.decoding import GumbelNoise, sampling_of
from composer_replication.teacher_replay.serving.model_teacher import choose_device

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
CALL = {"name": "read_file", "arguments": '{"path": "src/factorial.py"}'}
HISTORY: list[Any] = [
    {"role": "system", "content": "You are a coding agent."},
    {"role": "user", "content": "Please fix the failing test."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "c1", "content": "def factorial(n):\n    return 1"},
]


def teacher(template: str = "qwen2_5", seed: int = 1, **options: Any) -> HuggingFaceTeacher:
    return HuggingFaceTeacher(tiny_model("qwen2", vocab_size=640, seed=seed), tiny_tokenizer(template), **options)


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
        reply = client(server).chat.completions.create(
            model="m", messages=HISTORY, tools=[TOOL], temperature=0, max_tokens=40
        )
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
        choice = (
            client(server).chat.completions.create(model="m", messages=USER, tools=[TOOL], temperature=0).choices[0]
        )
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == ("So." if template == "qwen2_5" else None)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("read_file", {"path": "src/a.py"})]


def test_a_models_thoughts_are_no_part_of_what_it_says() -> None:
    one = taught("qwen2_5", "<think>\nHm.\n</think>\n\nYes.")
    with LocalTeachers({"m": one}) as server:
        reply = client(server).chat.completions.create(model="m", messages=USER, temperature=0)
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
    one = teacher(max_new_tokens=20)
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


def test_a_draw_has_the_probabilities_of_the_softmax() -> None:
    scores_NV = torch.tensor([2.0, 1.0, 0.0, -torch.inf]).expand(20_000, 4)
    noise = GumbelNoise(torch.Generator().manual_seed(0))
    drawn = noise(torch.zeros(1, 1), scores_NV).argmax(-1)
    frequencies = torch.bincount(drawn, minlength=4) / 20_000
    assert torch.allclose(frequencies, scores_NV[0].softmax(-1), atol=0.01)


def test_what_the_client_leaves_open_comes_from_the_models_own_settings() -> None:
    config = tiny_model("qwen2", vocab_size=640).generation_config

    def names(**given: Any) -> list[str]:
        return [type(one).__name__ for one in sampling_of(config, Question(USER, **given), torch.device("cpu"))]

    assert names() == names(temperature=0.0, top_p=0.5) == []
    assert names(temperature=1.0) == ["TemperatureLogitsWarper", "GumbelNoise"]
    config.do_sample, config.temperature, config.top_k, config.top_p = True, 0.7, 20, 0.8
    full = ["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "GumbelNoise"]
    assert names() == full
    assert names(top_p=1.0) == [full[0], full[1], full[3]]
    assert names(temperature=0.0) == []
    assert sampling_of(config, Question(USER), torch.device("cpu"))[0].temperature == 0.7


def test_an_answer_ends_at_a_stop_text() -> None:
    one = teacher(max_new_tokens=60)
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
    one = teacher(max_new_tokens=8)
    assert [ask(one, max_tokens=most).completion_tokens for most in (3, 8, 100, None)] == [3, 8, 8, 8]
    with pytest.raises(ValueError, match="max_new_tokens must be a positive whole number, got 0"):
        teacher(max_new_tokens=0)


def test_a_prompt_beyond_the_models_positions_is_refused_and_an_answer_ends_at_them() -> None:
    model, tokenizer = tiny_model("qwen2", vocab_size=640, seed=1), tiny_tokenizer("qwen2_5")
    one = HuggingFaceTeacher(model, tokenizer)
    used = ask(one, max_tokens=1).prompt_tokens
    model.config.max_position_embeddings = used + 5
    with LocalTeachers({"m": HuggingFaceTeacher(model, tokenizer)}) as server:
        sdk = client(server)
        reply = sdk.chat.completions.create(model="m", messages=USER, temperature=0)
        assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (5, "length")
        longer = [{"role": "user", "content": USER[0]["content"] + "!" * 5}]
        message = rf"the prompt has {used + 5} tokens, and the model takes {used + 5} with its answer"
        with pytest.raises(openai.BadRequestError, match=message) as caught:
            sdk.chat.completions.create(model="m", messages=longer, temperature=0)
        assert caught.value.code == "context_length_exceeded"
        assert sdk.chat.completions.create(model="m", messages=USER, temperature=0).usage.completion_tokens == 5


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


def watched(one: HuggingFaceTeacher, before: Callable[[], None], after: Callable[[], None]) -> None:
    generate = one._model.generate

    def watch(*arguments: Any, **options: Any) -> Any:
        before()
        try:
            return generate(*arguments, **options)
        finally:
            after()

    one._model.generate = watch


def test_a_client_that_goes_away_stops_the_generation() -> None:
    one = teacher(max_new_tokens=3500)
    one._ends.clear()
    started, ended = threading.Event(), threading.Event()
    tokens: list[int] = []
    one._model.register_forward_hook(lambda *_: tokens.append(1))
    watched(one, started.set, ended.set)
    with LocalTeachers({"m": one}) as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(request_bytes(json.dumps({"messages": USER, "temperature": 0}).encode()))
        started.wait()
        connection.close()
        ended.wait()
        assert len(tokens) < 3000
        # The next one has its turn.
        assert post(server, {"messages": USER, "temperature": 0, "max_tokens": 2})[0] == 200


def test_the_end_of_the_server_stops_the_generation() -> None:
    one = teacher(max_new_tokens=3500)
    one._ends.clear()
    started, ended = threading.Event(), threading.Event()
    tokens: list[int] = []
    one._model.register_forward_hook(lambda *_: tokens.append(1))
    watched(one, started.set, ended.set)
    with ThreadPoolExecutor(1) as pool:
        with LocalTeachers({"m": one}) as server:
            reply = pool.submit(post, server, {"messages": USER, "temperature": 0})
            started.wait()
        assert reply.result()[0] == 503
    ended.wait()
    assert len(tokens) < 3000


def test_half_a_surrogate_pair_does_not_stop_a_model() -> None:
    assert ask(teacher(max_new_tokens=2), messages=[{"role": "user", "content": "a\ud83d"}]).completion_tokens == 2


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


def saved(folder: Path, model: Any = None, template: str | None = "qwen2_5") -> Path:
    """A folder with the parts of a checkpoint that are given."""
    if model is not None:
        model.save_pretrained(folder)
    if template is not None:
        tiny_tokenizer(template).save_pretrained(folder)
    return folder


def adapted(tmp_path: Path, template: str | None = "qwen2_5") -> tuple[Path, Any]:
    """A folder with an adapter whose base is in another one, and the adapted model."""
    base = saved(tmp_path / "base", tiny_model("qwen2", vocab_size=640, seed=1))
    model = AutoModelForCausalLM.from_pretrained(base)
    model = get_peft_model(
        model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    )
    return saved(tmp_path / "adapter", model, template), model


def test_smollm2_is_the_bundled_model_as_for_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen2", vocab_size=640, seed=1)
    folder = saved(tmp_path / "converted", model)
    monkeypatch.setattr("composer_replication.pretrained.smollm2_checkpoint", lambda: folder)
    expected = ask(HuggingFaceTeacher(model, tiny_tokenizer("qwen2_5")), max_tokens=8)
    assert ask(HuggingFaceTeacher.load("smollm2"), max_tokens=8) == expected


def test_an_adapter_is_served_on_its_base(tmp_path: Path) -> None:
    folder, model = adapted(tmp_path)
    expected = ask(HuggingFaceTeacher(model.double().merge_and_unload(), tiny_tokenizer("qwen2_5")), max_tokens=20)
    loaded = HuggingFaceTeacher.load(str(folder))
    loaded._model.double()
    assert ask(loaded, max_tokens=20) == expected
    with LocalTeachers({"m": loaded}) as server, ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: post(server, {"messages": USER, "temperature": 0, "max_tokens": 20}), "abc"))
    assert [reply["choices"][0]["message"]["content"] for _, reply in replies] == [expected.content] * 3
    assert ask(HuggingFaceTeacher.load(str(tmp_path / "base")), max_tokens=20).content != expected.content


def test_an_adapter_has_its_own_tokenizer_and_template_or_those_of_its_base(tmp_path: Path) -> None:
    folder, _ = adapted(tmp_path, template=None)
    of_base = tiny_tokenizer("qwen2_5").chat_template
    assert HuggingFaceTeacher.load(str(folder))._tokenizer.chat_template == of_base
    own = tiny_tokenizer("qwen2_5")
    own.chat_template = None
    own.save_pretrained(folder)
    assert HuggingFaceTeacher.load(str(folder))._tokenizer.chat_template == of_base
    own.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    own.save_pretrained(folder)
    assert HuggingFaceTeacher.load(str(folder))._tokenizer.chat_template == own.chat_template


def test_an_adapter_that_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = adapted(tmp_path)
    (tmp_path / "run" / "checkpoint-9").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-10").mkdir()
    with pytest.raises(ValueError, match="a training run: give one of its checkpoints, such as checkpoint-10"):
        HuggingFaceTeacher.load(str(tmp_path / "run"))
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"an adapter, and its base model cannot be loaded: .*base: there is no such"):
        HuggingFaceTeacher.load(str(folder))
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": None}))
    with pytest.raises(ValueError, match=r"it is an adapter, and its adapter_config\.json names no base model"):
        HuggingFaceTeacher.load(str(folder))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"there is no adapter_model\.safetensors in it"):
        HuggingFaceTeacher.load(str(folder))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"'peft', which is not installed: pip install .*\[train\]"):
        HuggingFaceTeacher.load(str(folder))


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
