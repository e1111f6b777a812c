"""Teacher rows and index pairs for padded micro-batches: the same tokens at both ends, nothing hidden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer.scripted_rollouts import ANSWER, CONTENT, NOT_FOUND, OPENED, READ, padded, play, says

from composer_replication._tiny import tiny_tokenizer
from composer_replication.causal_lm import run_causal_lm
from composer_replication.channels import at, hinted_states, sdpo_pairs
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.trainer.rollout_hints import find_hint_sites, hinted_batch
from composer_replication.trainer.rollouts import Rollout
from composer_replication.trainer.sites import HintSite

ERRING = [READ, CONTENT, OPENED, NOT_FOUND, ANSWER]
TWICE = [OPENED, NOT_FOUND, READ, CONTENT, OPENED, NOT_FOUND, says("Nothing.")]
SHORT_PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]


def sites_of(tokenizer: Any, rollouts: list[Rollout], **options: Any) -> list[list[HintSite]]:
    generator = as_collator_hint(LayeredHints())
    return find_hint_sites(rollouts, tokenizer=tokenizer, hint_generator=generator, **options)[0]


def batched(
    tokenizer: Any, rollouts: list[Rollout], sites: list[list[HintSite]], *, extra: int = 0
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    found = hinted_batch(padded(rollouts, tokenizer.pad_token_id, extra=extra), sites, pad_token_id=7)
    assert found is not None
    return found


def test_rows_read_the_hint_right_before_the_turn_that_is_scored(tokenizer: Any) -> None:
    rollouts = [play(tokenizer, [ANSWER]), play(tokenizer, ERRING, prompt=SHORT_PROMPT), play(tokenizer, TWICE)]
    sites = sites_of(tokenizer, rollouts)
    batch, site_of_pair = batched(tokenizer, rollouts, sites, extra=2)
    assert batch["ctx_teacher_input_ids"].shape[0] == 3
    assert site_of_pair.unique().tolist() == [0, 1, 2]
    student_N2, teacher_N2 = sdpo_pairs(batch)
    owners = [(1, sites[1][0]), (2, sites[2][0]), (2, sites[2][1])]
    for number, (row, site) in enumerate(owners):
        own = site_of_pair == number
        assert student_N2[own, 0].unique().tolist() == [row]
        assert teacher_N2[own, 0].unique().tolist() == [number]
        turn = tokenizer.decode(at(batch["input_ids"], student_N2[own]))
        assert turn == tokenizer.decode(at(batch["ctx_teacher_input_ids"], teacher_N2[own]))
        assert turn.endswith(tokenizer.eos_token)
        assert '"open_file"' in turn
        length = int(batch["ctx_teacher_attention_mask"][number].sum())
        ids = batch["ctx_teacher_input_ids"][number]
        text, tail = tokenizer.decode(ids[:length]), tokenizer.decode([*site.hint_ids])
        header = tokenizer.decode(rollouts[row].ids[site.header : site.spans[0][0]])
        assert text.endswith(tail + header + turn)
        assert ids[length:].tolist() == [7] * (len(ids) - length)
    # Tool results are context: they stand in the row, and the row's mask shows all of it.
    assert "print(1)" in tokenizer.decode(batch["ctx_teacher_input_ids"][0])
    for row in batch["ctx_teacher_attention_mask"].tolist():
        assert row == sorted(row, reverse=True)


def test_student_ids_are_those_that_the_trainer_scores(qwen_tokenizer: Any) -> None:
    rollouts = [play(qwen_tokenizer, ERRING), play(qwen_tokenizer, [ANSWER], prompt=SHORT_PROMPT)]
    inputs = padded(rollouts, qwen_tokenizer.pad_token_id)
    found = hinted_batch(inputs, sites_of(qwen_tokenizer, rollouts), pad_token_id=7)
    assert found is not None
    assert found[0]["input_ids"].equal(torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1))
    assert found[0]["attention_mask"].equal(torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1))


@pytest.mark.parametrize("extra", [0, 5])
def test_a_hint_of_no_words_changes_no_prediction(qwen_tokenizer: Any, qwen_model: Any, extra: int) -> None:
    rollouts = [play(qwen_tokenizer, ERRING, prompt=SHORT_PROMPT), play(qwen_tokenizer, TWICE)]
    hinted = sites_of(qwen_tokenizer, rollouts)
    silent = [[replace(site, hint_ids=()) for site in own] for own in hinted]
    for sites, same in ((silent, True), (hinted, False)):
        batch, _ = batched(qwen_tokenizer, rollouts, sites, extra=extra)
        student_N2, teacher_N2 = sdpo_pairs(batch)
        with torch.no_grad():
            student = run_causal_lm(qwen_model.eval(), batch["input_ids"], batch["attention_mask"])
        taught = hinted_states(qwen_model, batch, teacher_N2)
        assert torch.allclose(student.predicting(student_N2), taught.hidden, atol=1e-4) is same


def test_siblings_score_every_turn(qwen_tokenizer: Any) -> None:
    rollouts = [play(qwen_tokenizer, TWICE), play(qwen_tokenizer, [READ, CONTENT, ANSWER])]
    sites = sites_of(
        qwen_tokenizer, rollouts, hint_source="sibling", rewards=[0, 1], groups=[0, 0], succeeded=[False, True]
    )
    batch, _ = batched(qwen_tokenizer, rollouts, sites)
    student_N2, teacher_N2 = sdpo_pairs(batch)
    said = [token for token, flag in zip(rollouts[0].completion_ids, rollouts[0].generated, strict=True) if flag]
    assert at(batch["input_ids"], student_N2).tolist() == said
    assert at(batch["ctx_teacher_input_ids"], teacher_N2).tolist() == said


def test_rollouts_that_carry_no_loss_have_no_rows(qwen_tokenizer: Any) -> None:
    rollouts = [play(qwen_tokenizer, TWICE), play(qwen_tokenizer, ERRING)]
    sites = sites_of(qwen_tokenizer, rollouts)
    inputs = padded(rollouts, qwen_tokenizer.pad_token_id)
    inputs["completion_mask"][0] = 0
    found = hinted_batch(inputs, sites, pad_token_id=7)
    assert found is not None
    batch, site_of_pair = found
    # The numbers still count all sites: 0 and 1 are the masked rollout's.
    assert site_of_pair.unique().tolist() == [2]
    assert sdpo_pairs(batch)[0][:, 0].unique().tolist() == [1]
    inputs["completion_mask"][1] = 0
    assert hinted_batch(inputs, sites, pad_token_id=7) is None


def test_no_sites_no_batch(qwen_tokenizer: Any) -> None:
    inputs = padded([play(qwen_tokenizer, [ANSWER])], qwen_tokenizer.pad_token_id)
    assert hinted_batch(inputs, [[]], pad_token_id=7) is None


def test_sites_of_other_rollouts_are_refused(qwen_tokenizer: Any) -> None:
    rollouts = [play(qwen_tokenizer, ERRING), play(qwen_tokenizer, [ANSWER])]
    sites = sites_of(qwen_tokenizer, rollouts)
    inputs = padded(rollouts, qwen_tokenizer.pad_token_id)
    with pytest.raises(ValueError, match=r"does not lie in rollout 1 of .*: are the sites in the rollouts' order"):
        hinted_batch(inputs, sites[::-1], pad_token_id=7)
    with pytest.raises(ValueError, match="one list for each of the 2 rollouts, got 1"):
        hinted_batch(inputs, sites[:1], pad_token_id=7)
    holed = {**inputs, "prompt_mask": inputs["prompt_mask"].clone()}
    holed["prompt_mask"][0, -1] = 0
    with pytest.raises(ValueError, match="prompts are padded on the left"):
        hinted_batch(holed, sites, pad_token_id=7)
    with pytest.raises(ValueError, match="inputs lacks 'prompt_mask'"):
        hinted_batch({name: inputs[name] for name in ("prompt_ids", "completion_ids")}, sites, pad_token_id=7)


TOKENIZERS = {name: tiny_tokenizer(name) for name in ("qwen2_5", "llama3_1")}
STEPS = st.lists(st.sampled_from([(OPENED, NOT_FOUND), (READ, CONTENT)]), max_size=4)


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(TOKENIZERS)),
    st.lists(st.tuples(STEPS, st.booleans(), st.integers(1, 6)), min_size=1, max_size=4),
    st.integers(0, 9),
    st.sampled_from(["erring_turn", "recovery_turn"]),
    st.booleans(),
)
def test_pairs_are_the_sampled_tokens_of_the_sites(
    name: str, given_rollouts: list[tuple[Any, bool, int]], extra: int, target: str, system: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    rollouts = [
        play(
            tokenizer,
            [message for step in steps for message in step] + [ANSWER],
            prompt=SHORT_PROMPT if short else [{"role": "user", "content": "Read " + "a.py " * length}],
            keep_last=length,
        )
        for steps, short, length in given_rollouts
    ]
    sites = sites_of(tokenizer, rollouts, sdpo_target=target, hint_role="system" if system else "user")
    found = hinted_batch(padded(rollouts, tokenizer.pad_token_id, extra=extra), sites, pad_token_id=7)
    flat = [(rollout, site) for rollout, own in zip(rollouts, sites, strict=True) for site in own]
    if not flat:
        assert found is None
        return
    assert found is not None
    batch, site_of_pair = found
    student_N2, teacher_N2 = sdpo_pairs(batch)
    widths = batch["ctx_teacher_attention_mask"].sum(-1).tolist()
    for number, (rollout, site) in enumerate(flat):
        own = site_of_pair == number
        ((start, stop),) = site.spans
        assert at(batch["input_ids"], student_N2[own]).tolist() == rollout.ids[start:stop]
        row = batch["ctx_teacher_input_ids"][number, : widths[number]].tolist()
        ids = rollout.ids[:stop]
        assert row == [*ids[: site.header], *site.hint_ids, *ids[site.header :]]
        # All that the student saw before a token, the teacher sees too.
        columns = teacher_N2[own, 1].tolist()
        assert columns == list(range(widths[number] - (stop - start), widths[number]))
