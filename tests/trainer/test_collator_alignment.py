"""Alignment by real templates, over made-up conversations: every index pair, every mask, every hint's place."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer.agent_traces import HINTED, NAMES, dialect, examples, readable, said, tokenizer_of

from composer_replication.traces import TraceExample
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator


def hint(kind: str, meta: dict[str, Any]) -> str:
    return f"Nota bene №{meta['number']}: {kind} 🙂."


def spans(mask: list[int]) -> list[tuple[int, int]]:
    """The runs of ones."""
    found, column = [], 0
    for flag, run in groupby(mask):
        length = len(list(run))
        if flag:
            found.append((column, column + length))
        column += length
    return found


def check(name: str, batch_of: list[TraceExample]) -> None:
    tokenizer = tokenizer_of(name)
    collator = ComposerDataCollator(tokenizer, CollatorConfig(hint_generator=hint))
    batch = collator(batch_of)
    lengths = batch["attention_mask"].sum(1).tolist()
    errors = []
    for row, example in enumerate(batch_of):
        answers = [turn for turn in example["turns"] if turn["role"] == "assistant"]
        ids = batch["input_ids"][row].tolist()[: lengths[row]]
        found = spans(batch["response_mask"][row].tolist())
        shown = [tokenizer.decode(ids[start:stop]) for start, stop in found]
        assert shown == [readable(tokenizer, said(name, turn)) for turn in answers]
        assert "Never to be seen" not in tokenizer.decode(ids)
        assert "Nota bene" not in tokenizer.decode(ids)
        # Attended to from the first token to the last, and nowhere else.
        assert batch["attention_mask"][row].tolist() == [1] * len(ids) + [0] * (batch["input_ids"].shape[1] - len(ids))
        errors += [
            (row, start, stop, turn["error_meta"])
            for (start, stop), turn in zip(found, answers, strict=True)
            if "tool_error" in turn
        ]
    assert collator.stats.sites == len(errors)
    assert "Never to be seen" not in str(collator.stats)
    if not errors:
        assert not any(key.startswith(("ctx_", "sdpo_")) for key in batch)
        return
    student, teacher = batch["sdpo_student_index"], batch["sdpo_teacher_index"]
    teacher_ids = batch["ctx_teacher_input_ids"]
    assert torch.equal(batch["input_ids"][student[:, 0], student[:, 1]], teacher_ids[teacher[:, 0], teacher[:, 1]])
    on = (batch["sdpo_loss_mask"] > 0).nonzero().tolist()
    assert on == teacher.tolist()
    assert set(batch["sdpo_loss_mask"].unique().tolist()) <= {1, -100}
    for site, (row, start, stop, meta) in enumerate(errors):
        here = teacher[:, 0] == site
        assert student[here].tolist() == [[row, column] for column in range(start, stop)]
        length = int(batch["ctx_teacher_attention_mask"][site].sum())
        assert batch["ctx_teacher_attention_mask"][site].tolist() == [1] * length + [0] * (
            teacher_ids.shape[1] - length
        )
        ids, hinted = batch["input_ids"][row].tolist(), teacher_ids[site].tolist()[:length]
        moved = int(teacher[here][0, 1])
        assert length == moved + stop - start
        place = HINTED[dialect(name)].format(role="system", hint=hint("tool_not_found", meta))
        assert tokenizer.decode(hinted[:moved]).endswith(place)
        # Without the hint's ids, the hinted context is what the student saw.
        shift = moved - start
        header = len(tokenizer(HINTED[dialect(name)].split("{hint}")[1], add_special_tokens=False)["input_ids"]) - 1
        header = header if dialect(name) == "llama" else header - 1  # the end of the hint's message
        assert hinted[: start - header] + hinted[start - header + shift :] == ids[:stop]
        assert tokenizer.decode(hinted).count("Nota bene") == 1


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_every_pair_mask_and_hint_is_in_its_place(name: str, data: st.DataObject) -> None:
    made = st.lists(examples(most_calls=1 if name == "llama3_1" else 3), min_size=1, max_size=2)
    check(name, data.draw(made))


@given(data=st.data())
def test_parallel_calls_are_refused_where_the_template_refuses_them(data: st.DataObject) -> None:
    example = data.draw(
        examples(most_calls=3).filter(lambda made: any(len(turn.get("tool_calls", ())) > 1 for turn in made["turns"]))
    )
    with pytest.raises(ValueError, match=r"trace 'made-up': the chat template refuses .* single tool-calls at once"):
        ComposerDataCollator(tokenizer_of("llama3_1"))([example])
