"""The collator's batch: its keys, its masks, its hinted contexts, what it cuts and what it refuses."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from trainer.agent_traces import TOOLS, call

from composer_replication._tiny import tiny_tokenizer
from composer_replication.channels import preference_logprobs
from composer_replication.loss import compose_loss
from composer_replication.rendering import render_conversation
from composer_replication.trainer.conversations import conversations, trace_turns
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.trace_rows import rows_digest

GO = {"role": "user", "content": "Fix the bug 🙂."}
WRONG = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call("c1", "open_file", path="a.py")],
    "tool_error": "tool_not_found",
    "error_meta": {"tool_name": "open_file"},
}
FAILS = {"role": "tool", "tool_call_id": "c1", "content": "Error: unknown tool", "is_error": True}
RIGHT = {"role": "assistant", "content": "", "tool_calls": [call("c2", "read_file", path="a.py")]}
READS = {"role": "tool", "tool_call_id": "c2", "content": "x = 1"}
DONE = {"role": "assistant", "content": "Done, all tests pass."}
TURNS = [GO, WRONG, FAILS, RIGHT, READS, DONE]
HINT = "Reminder: files are read with read_file."
PAIR = {
    "state_id": "s",
    "state_messages": [GO],
    "chosen": '[TOOL_USE] name=read_file input={"path": "a.py"}',
    "rejected": '[TOOL_USE] name=open_file input={"path": "a.py"}',
    "n_teachers_agreeing": 2,
}


def example(*turns: dict[str, Any], **fields: Any) -> Any:
    return {"trace_id": "t", "turns": list(turns), "tools": TOOLS, "final_reward": 0.5, **fields}


def hinting(**settings: Any) -> CollatorConfig:
    return CollatorConfig(hint_generator=lambda kind, meta: HINT, **settings)


def masked(tokenizer: Any, batch: dict[str, torch.Tensor], row: int = 0) -> str:
    text: str = tokenizer.decode(batch["input_ids"][row][batch["response_mask"][row] > 0])
    return text


def paired(tokenizer: Any, batch: dict[str, torch.Tensor]) -> str:
    index = batch["sdpo_student_index"]
    text: str = tokenizer.decode(batch["input_ids"][index[:, 0], index[:, 1]])
    return text


def test_settings_are_the_documented_ones() -> None:
    config = CollatorConfig()
    lengths_and_fillers = (config.max_seq_len, config.max_dpo_seq_len, config.pad_token_id, config.ignore_index)
    assert lengths_and_fillers == (4096, 2048, 0, -100)
    assert (config.enable_sdpo, config.hint_generator, config.enable_replay_dpo) == (True, None, True)
    assert (config.rlvr_reward_key, config.sdpo_target, config.hint_role) == ("final_reward", "erring_turn", "system")
    with pytest.raises(ValueError, match="sdpo_target must be one of 'erring_turn', 'recovery_turn', got 'both'"):
        CollatorConfig(sdpo_target="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ignore_index must not be above 0"):
        CollatorConfig(ignore_index=1)
    with pytest.raises(ValueError, match="max_seq_len must be a positive whole number"):
        CollatorConfig(max_seq_len=0)


def test_a_batch_goes_through_the_loss_with_all_channels_live(tokenizer: Any, model: Any) -> None:
    collator = ComposerDataCollator(tokenizer, hinting())
    batch = collator([example(*TURNS, dpo_pairs=[PAIR]), example(GO, DONE)])
    assert set(batch) == {
        *("input_ids", "attention_mask", "response_mask", "rewards"),
        *("ctx_teacher_input_ids", "ctx_teacher_attention_mask", "sdpo_loss_mask"),
        *("sdpo_student_index", "sdpo_teacher_index"),
        *(f"dpo_{side}_{part}" for side in ("chosen", "rejected") for part in ("input_ids", "attention_mask")),
        *("dpo_chosen_response_mask", "dpo_rejected_response_mask"),
    }
    with torch.no_grad():
        chosen, rejected = preference_logprobs(model, batch)[0].chunk(2)
    batch |= {"dpo_chosen_ref_logprobs": chosen, "dpo_rejected_ref_logprobs": rejected}
    loss = compose_loss(model, batch, alpha_sdpo=0.1, beta_replay=0.05)
    assert loss.active_tokens == {
        "lm_ce": int(batch["response_mask"].sum()),
        "sdpo_jsd": batch["sdpo_student_index"].shape[0],
        "trace_replay_dpo": int(batch["dpo_chosen_response_mask"].sum() + batch["dpo_rejected_response_mask"].sum()),
    }
    assert float(loss.sdpo_jsd.detach()) > 0
    loss.total.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
    stats = collator.stats
    assert (stats.examples, stats.rows, stats.sites, stats.pairs) == (2, 2, 1, 1)
    assert stats.hint_role_used == {"system": 1}


def test_the_teachers_logits_are_those_of_the_hinted_conversation_rendered_apart(
    tokenizer: Any, qwen_model: Any
) -> None:
    turns = [*TURNS[:5], {**WRONG, "tool_calls": [call("c3", "open_file", path="b.py")]}]
    batch = ComposerDataCollator(tokenizer, hinting())([example(GO, DONE), example(*turns)])
    (conversation,) = conversations(trace_turns(example(*turns)))
    model = qwen_model.eval()
    with torch.no_grad():
        student = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        teacher = model(
            input_ids=batch["ctx_teacher_input_ids"], attention_mask=batch["ctx_teacher_attention_mask"]
        ).logits
    for site, erring in enumerate((1, 5)):
        hinted = [*conversation.messages[:erring], {"role": "system", "content": HINT}, conversation.messages[erring]]
        apart = render_conversation(tokenizer, hinted, tools=TOOLS)
        turn = apart.turns[-1]
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([apart.ids])).logits[0, turn.start - 1 : turn.stop - 1]
        here = batch["sdpo_teacher_index"][:, 0] == site
        rows, columns = batch["sdpo_teacher_index"][here].unbind(1)
        torch.testing.assert_close(teacher[rows, columns - 1], expected, rtol=1e-4, atol=1e-4)
        rows, columns = batch["sdpo_student_index"][here].unbind(1)
        assert float((student[rows, columns - 1] - expected).abs().max()) > 0.01  # the hint makes a difference


def test_tools_of_the_example_are_shown_to_the_model(tokenizer: Any) -> None:
    batch = ComposerDataCollator(tokenizer)([example(*TURNS)])
    assert "The tool run_python." in tokenizer.decode(batch["input_ids"][0])
    assert not any(key.startswith(("ctx_", "sdpo_", "dpo_")) for key in batch)  # no hint generator, no pairs


def test_every_error_gets_a_context_of_its_own(qwen_tokenizer: Any) -> None:
    again = {**WRONG, "tool_calls": [call("c1", "list", path="."), call("c9", "cat", path="b")], "error_meta": {"n": 2}}
    seen = []
    config = CollatorConfig(hint_generator=lambda kind, meta: seen.append((kind, meta)) or f"Hint {len(seen)}.")
    collator = ComposerDataCollator(qwen_tokenizer, config)
    batch = collator([example(GO, DONE), example(*TURNS[:5], again, FAILS, DONE)])
    assert seen == [("tool_not_found", {"tool_name": "open_file"}), ("tool_not_found", {"n": 2})]
    assert batch["ctx_teacher_input_ids"].shape[0] == 2
    first, second = (qwen_tokenizer.decode(ids) for ids in batch["ctx_teacher_input_ids"])
    assert "Hint 1." in first
    assert "Hint 1." not in second
    assert "Hint 2." in second
    assert set(batch["sdpo_student_index"][:, 0].tolist()) == {1}
    assert paired(qwen_tokenizer, batch).count("<tool_call>") == 3


def test_only_the_first_errors_may_get_a_hint_and_without_the_failing_call(qwen_tokenizer: Any) -> None:
    quoting = {**WRONG, "error_meta": {"error_message": "Unknown tool in {'path': 'a.py'}.", "tool_name": "open_file"}}
    config = CollatorConfig(
        hint_generator=lambda kind, meta: f"Hint: {(meta or {})['error_message']}",
        max_hinted_turns=2,
        strip_attempt=True,
    )
    collator = ComposerDataCollator(qwen_tokenizer, config)
    batch = collator([example(GO, *([quoting, FAILS] * 3), DONE), example(GO, quoting, FAILS, DONE)])
    hinted = qwen_tokenizer.batch_decode(batch["ctx_teacher_input_ids"])
    assert len(hinted) == 3
    assert all("Hint: Unknown tool in …." in text for text in hinted)
    assert collator.stats.sites == 3
    assert collator.stats.sites_dropped == {"above max_hinted_turns": 1}
    with pytest.raises(ValueError, match="max_hinted_turns must be a positive whole number, got 0"):
        CollatorConfig(max_hinted_turns=0)


def test_the_recovery_turn_can_be_the_target(qwen_tokenizer: Any) -> None:
    collator = ComposerDataCollator(qwen_tokenizer, hinting(sdpo_target="recovery_turn"))
    batch = collator([example(*TURNS)])
    assert '"read_file"' in paired(qwen_tokenizer, batch)
    assert "open_file" not in paired(qwen_tokenizer, batch)
    hinted = qwen_tokenizer.decode(batch["ctx_teacher_input_ids"][0])
    assert hinted.index("Error: unknown tool") < hinted.index(HINT) < hinted.index('{"name": "read_file", "arguments"')
    batch = collator([example(GO, WRONG, FAILS)])
    assert "ctx_teacher_input_ids" not in batch
    assert collator.stats.sites_dropped == {"no recovery turn": 1}
    # The turn after one that is charged with a later failure has not seen that failure.
    charged = {**WRONG, "error_meta": {"reported_by": "later"}}
    assert "ctx_teacher_input_ids" not in collator([example(GO, charged, *TURNS[2:])])
    assert collator.stats.sites_dropped == {"no recovery turn": 2}


def test_errors_that_are_not_the_students_get_no_hint(qwen_tokenizer: Any) -> None:
    collator = ComposerDataCollator(qwen_tokenizer, hinting())
    for other in ({"tool_error": "user_rejected"}, {"error_meta": {"students_mistake": False}}):
        assert "ctx_teacher_input_ids" not in collator([example(GO, {**WRONG, **other}, FAILS, DONE)])
    assert collator.stats.sites_dropped == {"not the student's mistake": 2}
    silent = ComposerDataCollator(qwen_tokenizer, CollatorConfig(hint_generator=lambda kind, meta: None))
    assert "sdpo_loss_mask" not in silent([example(*TURNS)])
    assert (silent.stats.hints_missing, silent.stats.sites) == (1, 0)
    off = ComposerDataCollator(qwen_tokenizer, hinting(enable_sdpo=False, enable_replay_dpo=False))
    assert set(off([example(*TURNS, dpo_pairs=[PAIR])])) == {"input_ids", "attention_mask", "response_mask", "rewards"}


def test_turns_that_went_wrong_can_be_left_out_of_the_loss(qwen_tokenizer: Any) -> None:
    kept = ComposerDataCollator(qwen_tokenizer, hinting())([example(*TURNS)])
    left_out = ComposerDataCollator(qwen_tokenizer, hinting(train_on_errors=False))([example(*TURNS)])
    assert "open_file" in masked(qwen_tokenizer, kept)
    assert "open_file" not in masked(qwen_tokenizer, left_out)
    assert "read_file" in masked(qwen_tokenizer, left_out)
    assert torch.equal(left_out["input_ids"], kept["input_ids"])
    assert torch.equal(left_out["sdpo_student_index"], kept["sdpo_student_index"])
    others = example(GO, {**WRONG, "tool_error": "user_rejected"}, FAILS, DONE)
    batch = ComposerDataCollator(qwen_tokenizer, hinting(train_on_errors=False))([others])
    assert "open_file" in masked(qwen_tokenizer, batch)  # not the student's mistake: nothing wrong with the turn


@pytest.mark.parametrize("pad", [None, "<|im_end|>"])
def test_padding_is_known_by_length_and_not_by_id(qwen_tokenizer: Any, pad: str | None) -> None:
    tokenizer = copy.deepcopy(qwen_tokenizer)
    tokenizer.pad_token = pad
    # The end of a turn, or the token that every ChatML message begins with, is the padding too.
    filler = tokenizer.convert_tokens_to_ids(pad or "<|im_start|>")
    config = hinting(pad_token_id=filler if pad is None else 0)
    long, short = example(*TURNS, dpo_pairs=[PAIR, {**PAIR, "chosen": "Done."}]), example(GO, WRONG)
    batch = ComposerDataCollator(tokenizer, config)([long, short])
    alone = [ComposerDataCollator(tokenizer, config)([one]) for one in (long, short)]
    for row, one in enumerate(alone):
        width = one["input_ids"].shape[1]
        assert bool((one["attention_mask"] == 1).all())
        assert batch["attention_mask"][row].tolist() == [1] * width + [0] * (batch["input_ids"].shape[1] - width)
        assert batch["input_ids"][row, :width].tolist() == one["input_ids"][0].tolist()
        assert set(batch["input_ids"][row, width:].tolist()) <= {filler}
        assert filler in one["input_ids"]
        site = one["ctx_teacher_input_ids"].shape[1]
        assert int(batch["ctx_teacher_attention_mask"][row].sum()) == site
    lengths = batch["dpo_chosen_attention_mask"].sum(1).tolist()
    assert lengths[0] > lengths[1]
    for row, length in enumerate(lengths):
        # A response ends where its row does.
        assert int(batch["dpo_chosen_response_mask"][row].nonzero().max()) == length - 1


def test_errors_that_a_long_row_would_lose_can_have_windows_of_their_own(qwen_tokenizer: Any) -> None:
    turns: list[dict[str, Any]] = [GO]
    for number in range(6):
        wrong = {**WRONG, "tool_calls": [call(f"c{number}", f"tool_{number}", path="a.py")]}
        turns += [wrong, {**FAILS, "tool_call_id": f"c{number}"}, {"role": "user", "content": "and on it goes " * 8}]
    turns.append(DONE)
    # Beside tools and task, 600 tokens hold one of them (at the beginning two) and 800 three.
    for limit, most, rows, kept in ((600, 1, 1, 0), (600, 3, 3, 2), (600, 9, 6, 6), (800, 9, 3, 6)):
        collator = ComposerDataCollator(qwen_tokenizer, hinting(max_seq_len=limit, max_windows=most))
        batch = collator([example(*turns)])
        dropped = {"beyond max_windows": 6 - kept} if kept < 6 else {}
        assert (collator.stats.sites, collator.stats.sites_dropped) == (kept, dropped)
        assert batch["input_ids"].shape[0] == collator.stats.rows == rows
        assert batch["input_ids"].shape[1] <= limit
        if kept:
            assert paired(qwen_tokenizer, batch).count("<tool_call>") == kept
            student, teacher = batch["sdpo_student_index"], batch["sdpo_teacher_index"]
            at_both = (batch["input_ids"][tuple(student.T)], batch["ctx_teacher_input_ids"][tuple(teacher.T)])
            assert torch.equal(*at_both)
            assert batch["ctx_teacher_input_ids"].shape[1] <= limit
        learned = "".join(masked(qwen_tokenizer, batch, row) for row in range(batch["input_ids"].shape[0]))
        for number in range(6):
            # Learned in one window at most, although several show it.
            assert learned.count(f"tool_{number}") == (number >= 6 - kept)
        assert learned.count("Done") == 1


def test_a_trace_that_begins_anew_gives_a_row_for_each_context(qwen_tokenizer: Any) -> None:
    summary = {"role": "user", "content": "Summary so far.", "follows": -1}
    again = {**WRONG, "content": "Again."}
    collator = ComposerDataCollator(qwen_tokenizer, hinting())
    batch = collator([example(*TURNS, summary, again, FAILS), example(GO, DONE, final_reward=2)])
    assert batch["rewards"].tolist() == [0.5, 0.5, 2.0]
    assert [masked(qwen_tokenizer, batch, row).count("Again.") for row in range(3)] == [0, 1, 0]
    assert "Fix the bug" not in qwen_tokenizer.decode(batch["input_ids"][1])
    assert sorted(set(batch["sdpo_student_index"][:, 0].tolist())) == [0, 1]
    assert (collator.stats.examples, collator.stats.rows, collator.stats.sites) == (2, 3, 2)


def test_rewards_are_found_missing_or_refused(qwen_tokenizer: Any) -> None:
    collator = ComposerDataCollator(qwen_tokenizer)
    unrewarded = example(GO, DONE)
    del unrewarded["final_reward"]
    assert collator([unrewarded, example(GO, DONE)])["rewards"].tolist() == [0.0, 0.5]
    assert collator.stats.rewards_missing == 1
    with pytest.raises(ValueError, match="trace 't' has the reward nan"):
        collator([example(GO, DONE, final_reward=math.nan)])
    other = ComposerDataCollator(qwen_tokenizer, CollatorConfig(rlvr_reward_key="score"))
    assert other([example(GO, DONE, score=3)])["rewards"].tolist() == [3.0]


def test_batches_without_anything_to_learn_are_refused(qwen_tokenizer: Any) -> None:
    collator = ComposerDataCollator(qwen_tokenizer)
    with pytest.raises(ValueError, match="the batch is empty"):
        collator([])
    with pytest.raises(ValueError, match="none of the batch's 2 examples has an assistant turn"):
        collator([example(GO), example()])
    assert collator([example(GO), example(GO, DONE)])["input_ids"].shape[0] == 1
    assert collator.stats.examples_without_turns == 3


def test_templates_that_would_lie_are_refused_before_anything_is_rendered(qwen_tokenizer: Any) -> None:
    deaf = copy.deepcopy(qwen_tokenizer)
    deaf.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
    )
    collator = ComposerDataCollator(deaf)
    assert masked(deaf, collator([{"turns": [GO, DONE]}])) == "Done, all tests pass.<|im_end|>"
    with pytest.raises(ValueError, match="leaves tool calls or their results out; trl has no better template"):
        collator([example(*TURNS)])
    forgetful = copy.deepcopy(qwen_tokenizer)
    forgetful.chat_template = deaf.chat_template.replace("m.content", "(m.content if loop.last else '…')")
    with pytest.raises(ValueError, match=r"leaves out a message's text; trl has no better template"):
        ComposerDataCollator(forgetful)([{"turns": [GO, DONE]}])


def test_a_template_without_system_messages_in_the_middle_gets_the_hint_from_the_user(qwen_tokenizer: Any) -> None:
    strict = copy.deepcopy(qwen_tokenizer)
    strict.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
        "{% endfor %}" + qwen_tokenizer.chat_template
    )
    collator = ComposerDataCollator(strict, hinting())
    batch = collator([example(*TURNS)])
    assert f"<|im_start|>user\n{HINT}<|im_end|>\n<|im_start|>assistant\n" in strict.decode(
        batch["ctx_teacher_input_ids"][0]
    )
    assert collator.stats.hint_role_used == {"user": 1}


def test_text_that_a_template_leaves_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    collator = ComposerDataCollator(tiny_tokenizer("llama3_1"))
    for _ in range(2):
        collator([example(*TURNS)])
    assert [record.getMessage() for record in caplog.records] == [
        "the chat template has no place for what turns say beside their calls: it is left out"
    ]


def test_halves_of_characters_do_not_stop_a_batch(qwen_tokenizer: Any) -> None:
    batch = ComposerDataCollator(qwen_tokenizer)([example({"role": "user", "content": "\ud83d"}, DONE)])
    assert "Done" in masked(qwen_tokenizer, batch)


def test_the_digest_of_rows_is_that_of_older_checkpoints(qwen_tokenizer: Any) -> None:
    rows = ComposerDataCollator(qwen_tokenizer, hinting()).rows(example(*TURNS))
    assert rows_digest(rows) == "a3737b5d3d57aae11d373adfc45c3368c8ee6cc2e33ef5c50be792b8c2f313c4"
    assert rows_digest([row.compact() for row in rows]) == rows_digest(rows)
