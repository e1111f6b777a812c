"""A micro-batch of rollouts and their hint sites as the tensors that channel 2 takes.

Shapes: B rollouts, P prompt columns (padded on the left), C completion columns (padded on the right), S sites,
N scored tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from composer_replication._arguments import check_same_shape, check_token_ids, entry
from composer_replication.trainer.rollouts.hint_sites import HintSite


def hinted_batch(
    inputs: Mapping[str, torch.Tensor], sites: Sequence[Sequence[HintSite]], *, pad_token_id: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    """Channel 2's entries for the rollouts in `inputs`, and for each scored token the number of its site.

    One teacher row per site: the rollout's ids up to the last token that is scored, with the hint spliced in. Tool
    results stay visible in it. A rollout whose `completion_mask` is all zero (it is not to be learnt from) has no row.

    Args:
        inputs: `prompt_ids` and `prompt_mask` (B, P), `completion_ids` and `completion_mask` (B, C).
        sites: those of each rollout.
        pad_token_id: fills the teacher's rows on the right.

    Returns:
        None if nothing is scored. Else `input_ids` and `attention_mask` (B, P+C), `ctx_teacher_input_ids` and
        `ctx_teacher_attention_mask` (S, widest), `sdpo_student_index` and `sdpo_teacher_index` (N, 2); and (N,)
        numbers that count all of `sites` in order, those of left-out rollouts too.

    Raises:
        ValueError: not one list of sites per rollout, a prompt with gaps, or a site that does not lie in its rollout.
    """
    prompt_ids, completion_ids = entry(inputs, "prompt_ids"), entry(inputs, "completion_ids")
    prompt_mask, completion_mask = entry(inputs, "prompt_mask"), entry(inputs, "completion_mask")
    check_token_ids("prompt_ids", prompt_ids)
    check_token_ids("completion_ids", completion_ids)
    check_same_shape("prompt_mask", prompt_mask, "prompt_ids", prompt_ids)
    check_same_shape("completion_mask", completion_mask, "completion_ids", completion_ids)
    if len(sites) != prompt_ids.shape[0]:
        raise ValueError(f"sites must have one list for each of the {prompt_ids.shape[0]} rollouts, got {len(sites)}")
    ids = torch.cat([prompt_ids, completion_ids], dim=1)
    attention_mask = torch.cat([prompt_mask, completion_mask], dim=1)
    # One transfer each, whatever the device.
    paddings = _left_paddings(prompt_mask)
    lengths = completion_mask.sum(-1).tolist()

    rows: list[torch.Tensor] = []
    student: list[torch.Tensor] = []
    teacher: list[torch.Tensor] = []
    numbers: list[torch.Tensor] = []
    numbered = enumerate((rollout, site) for rollout, own in enumerate(sites) for site in own)
    for number, (rollout, site) in numbered:
        if lengths[rollout] == 0:
            continue
        padding = paddings[rollout]
        last = site.spans[-1][1]
        known = prompt_ids.shape[1] - padding + lengths[rollout]
        if not 0 < site.header <= site.spans[0][0] or last > known:
            raise ValueError(
                f"a hint at {site.header} for the tokens {site.spans} does not lie in rollout {rollout} of {known} "
                "tokens: are the sites in the rollouts' order?"
            )
        own_ids = ids[rollout, padding : padding + last]
        hint_ids = torch.tensor(site.hint_ids, dtype=ids.dtype, device=ids.device)
        tokens = torch.cat([torch.arange(start, stop, device=ids.device) for start, stop in site.spans])
        student.append(torch.stack([torch.full_like(tokens, rollout), padding + tokens], dim=1))
        teacher.append(torch.stack([torch.full_like(tokens, len(rows)), len(site.hint_ids) + tokens], dim=1))
        numbers.append(torch.full_like(tokens, number))
        rows.append(torch.cat([own_ids[: site.header], hint_ids, own_ids[site.header :]]))
    if not rows:
        return None
    widths = torch.tensor([len(row) for row in rows], device=ids.device)
    teacher_ids = pad_sequence(rows, batch_first=True, padding_value=pad_token_id)
    batch = {
        "input_ids": ids,
        "attention_mask": attention_mask,
        "ctx_teacher_input_ids": teacher_ids,
        # From lengths, not from what carries loss: the teacher reads tool results as the student does.
        "ctx_teacher_attention_mask": (torch.arange(teacher_ids.shape[1], device=ids.device) < widths[:, None]).to(
            attention_mask.dtype
        ),
        "sdpo_student_index": torch.cat(student),
        "sdpo_teacher_index": torch.cat(teacher),
    }
    return batch, torch.cat(numbers)


def _left_paddings(prompt_mask: torch.Tensor) -> list[int]:
    """How many columns of padding stand before each prompt."""
    width = prompt_mask.shape[1]
    paddings = width - prompt_mask.sum(-1)
    shown = torch.arange(width, device=prompt_mask.device) >= paddings[:, None]
    if not torch.equal(shown, prompt_mask > 0):
        raise ValueError("prompt_mask must be zeros and then ones in every row: prompts are padded on the left")
    counted: list[int] = paddings.tolist()
    return counted
