"""From rollouts to hint sites, and from a micro-batch with its sites to the tensors of channel 2.

Turns that went wrong get a hint. Rollouts that failed can also be told what a successful sibling did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import torch

from composer_replication._arguments import check_choice, check_count, check_same_shape, check_token_ids, entry
from composer_replication.channels.hint_distillation import HintGenerator, HintSourceKind, SDPOTarget
from composer_replication.chat_templates import Ending
from composer_replication.ingestion.chat_messages import call_of, calls_in, text_of
from composer_replication.rendering import hinted_rows
from composer_replication.traces import Message, ToolCall, dump_json
from composer_replication.trainer.rollouts import Rollout, context_before, is_cut_call, sampled_turns, tool_remarks
from composer_replication.trainer.sites import Hint, HintSite, SiteFinder, remarks

Value = TypeVar("Value")

SIBLING_CHARACTERS = 2000
"""The longest text of a sibling's solution."""


def find_hint_sites(
    rollouts: Sequence[Rollout],
    *,
    tokenizer: Any,
    hint_generator: HintGenerator,
    hint_source: HintSourceKind = "error",
    hint_role: str = "system",
    sdpo_target: SDPOTarget = "erring_turn",
    max_hinted_turns: int | None = None,
    strip_attempt: bool = False,
    feedback: Sequence[Any] | None = None,
    reward_texts: Sequence[Any] | None = None,
    rewards: Sequence[float] | None = None,
    groups: Sequence[Hashable] | None = None,
    succeeded: Sequence[bool] | None = None,
    max_length: int | None = None,
) -> tuple[list[list[HintSite]], Counter[str]]:
    """Return the hint sites of each rollout, at most one per turn, and counts of what became of all of them.

    Where several say something about a turn, the environment comes first, which knows its state, then the reward
    function, then the tool's error; the first that has a hint counts.

    Args:
        rollouts: as sampled.
        tokenizer: renders as the rollouts' prompts were rendered; see `TemplatedTokenizer`.
        hint_generator: asked about every error but those that are not the student's mistake.
        hint_source: "error" (turns that went wrong), "sibling" (failed rollouts are told of a successful one of their
            group, and the loss applies to all their turns) or "both": the errors of failed rollouts are told of the
            sibling too, and failed rollouts without such a site of the sibling alone.
        hint_role: the role of the hint's message; "user" where the template refuses it.
        sdpo_target: the turn that went wrong, or the one after it.
        max_hinted_turns: the most turns of a rollout that get a hint about an error; None: all.
        strip_attempt: take the failing call out of its hint; a sibling's solution stays whole.
        feedback: per rollout, what its environment says of its turns, in one of the shapes of `sites.remarks`; texts
            are hints as they are.
        reward_texts: the same, from reward functions.
        rewards: per rollout; for siblings.
        groups: per rollout, a key of its prompt; for siblings.
        succeeded: per rollout; for siblings.
        max_length: of a teacher's row in tokens; a site that needs more is left out whole.

    Returns:
        The sites, and counts. A rollout without a site counts at least one reason.
        By site: "sites", "hint_role_user" (the template refused `hint_role`).
        By failed turn that got no site: the reasons of `sites`.
        By rollout: "no_error", "succeeded", "no_sibling", "turns_do_not_match", "truncated" (nothing was sampled, or
        the limit cut its call off).

    Raises:
        ValueError: an unknown choice, not one value per rollout, feedback of an unknown shape.
    """
    check_choice("hint_source", hint_source, get_args(HintSourceKind))
    check_choice("sdpo_target", sdpo_target, get_args(SDPOTarget))
    check_count("max_length", max_length)
    check_count("max_hinted_turns", max_hinted_turns)
    nothing = [None] * len(rollouts)
    feedback = _one_each("feedback", nothing if feedback is None else feedback, rollouts)
    reward_texts = _one_each("reward_texts", nothing if reward_texts is None else reward_texts, rollouts)
    solutions, failed = [""] * len(rollouts), [False] * len(rollouts)
    if hint_source != "error":
        succeeded = _one_each("succeeded", succeeded, rollouts)
        failed = [not success for success in succeeded]
        rewards, groups = _one_each("rewards", rewards, rollouts), _one_each("groups", groups, rollouts)
        solutions = [
            "" if sibling is None else solution_text(rollouts[sibling], tokenizer)
            for sibling in best_siblings(rewards, groups, succeeded)
        ]
    finder = SiteFinder(
        tokenizer,
        hint_generator,
        sdpo_target,
        hint_role,
        max_length,
        max_turns=max_hinted_turns,
        strip_attempt=strip_attempt,
    )
    counts = finder.counts
    headers: dict[Ending, list[int] | None] = {}
    found: list[list[HintSite]] = []
    for index, (rollout, solution) in enumerate(zip(rollouts, solutions, strict=True)):
        sites: list[HintSite | None] = []
        spans = sampled_turns(rollout, tokenizer, headers) or []
        if not spans:
            counts["turns_do_not_match" if any(rollout.generated) else "truncated"] += 1
        elif hint_source != "sibling":
            said = finder.by_turn(
                [
                    *remarks(feedback[index], len(spans), "environment"),
                    *remarks(reward_texts[index], len(spans), "reward"),
                    *tool_remarks(rollout, spans, tokenizer),
                ]
            )
            if not said:
                counts["truncated" if is_cut_call(rollout, spans[-1], tokenizer) else "no_error"] += 1
            calls = [[] if span.message is None else _calls(rollout.messages[span.message]) for span in spans]
            for hint in finder.hints(said, range(len(spans)), calls):
                told = hint._replace(text=f"{solution}\n\n{hint.text}") if solution else hint
                span = spans[hint.turn]
                sites.append(
                    finder.place(told, [span], context_before(rollout, span.message, span.start), rollout.tools)
                )
        elif not failed[index]:
            counts["succeeded"] += 1
        if spans and failed[index] and not any(sites):
            if solution:
                told = Hint(0, "sibling", "sibling", solution)
                sites.append(
                    finder.place(told, spans, context_before(rollout, spans[0].message, spans[0].start), rollout.tools)
                )
            else:
                counts["no_sibling"] += 1
        found.append([site for site in sites if site is not None])
    roles = (site.role for sites in found for site in sites)
    counts.update(f"hint_role_{role}" for role in roles if role != hint_role)
    return found, counts


def best_siblings(rewards: Sequence[float], groups: Sequence[Hashable], succeeded: Sequence[bool]) -> list[int | None]:
    """For each failed rollout, return the successful one of its group with the best reward, the first of equals.

    None for those that succeeded, and where nobody did.
    """
    best: dict[Hashable, int] = {}
    for index, (group, success) in enumerate(zip(groups, succeeded, strict=True)):
        # One that nothing scored has nothing to show.
        if success and not math.isnan(rewards[index]) and (group not in best or rewards[index] > rewards[best[group]]):
            best[group] = index
    return [None if success else best.get(group) for group, success in zip(groups, succeeded, strict=True)]


def solution_text(rollout: Rollout, tokenizer: Any, *, max_characters: int = SIBLING_CHARACTERS) -> str:
    """Tell what a rollout did and answered; of a long one the beginning and the end. Empty if it did nothing."""
    if rollout.messages:
        parts = []
        for place in rollout.spoken:
            message = rollout.messages[place]
            parts.append(text_of(message.get("content")).strip())
            for call in _calls(message):
                given = call.raw_arguments if call.raw_arguments is not None else dump_json(call.arguments)
                parts.append(f"Call {call.name} with {given}")
    else:
        said = [token for token, flag in zip(rollout.completion_ids, rollout.generated, strict=True) if flag]
        parts = [tokenizer.decode(said, skip_special_tokens=True).strip()]
    text = "\n".join(part for part in parts if part)
    if not text:
        return ""
    if len(text) > max_characters:
        head = max_characters // 2
        text = f"{text[:head]} … {text[len(text) - (max_characters - head) :]}"
    return f"A correct solution of this task:\n{text}"


def hinted_batch(
    inputs: Mapping[str, torch.Tensor], sites: Sequence[Sequence[HintSite]], *, pad_token_id: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    """Return channel 2's entries for the rollouts in `inputs`, and for each scored token the number of its site.

    One teacher row per site; tool results stay visible in it. A rollout whose `completion_mask` is all zero (it carries
    no loss) has no row. Shapes: B rollouts, P prompt columns (padded on the left), C completion columns (padded on the
    right), S sites, N scored tokens.

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
    parts = {}
    for part in ("prompt", "completion"):
        parts[part] = entry(inputs, f"{part}_ids"), entry(inputs, f"{part}_mask")
        check_token_ids(f"{part}_ids", parts[part][0])
        check_same_shape(f"{part}_mask", parts[part][1], f"{part}_ids", parts[part][0])
    ids, mask = (torch.cat(both, dim=1) for both in zip(*parts.values(), strict=True))
    prompt_mask, completion_mask = parts["prompt"][1], parts["completion"][1]
    if len(sites) != len(ids):
        raise ValueError(f"sites must have one list for each of the {len(ids)} rollouts, got {len(sites)}")
    width = prompt_mask.shape[1]
    lengths_2B = torch.stack([prompt_mask.sum(-1), completion_mask.sum(-1)])
    if not torch.equal(prompt_mask > 0, torch.arange(width, device=ids.device) >= width - lengths_2B[0][:, None]):
        raise ValueError("prompt_mask must be zeros and then ones in every row: prompts are padded on the left")
    prompt_lengths, lengths = lengths_2B.tolist()
    paddings = [width - length for length in prompt_lengths]
    kept = [own if length else [] for own, length in zip(sites, lengths, strict=True)]
    for number, own in enumerate(kept):
        known = prompt_lengths[number] + lengths[number]
        for site in own:
            if not 0 < site.header <= site.spans[0][0] or site.spans[-1][1] > known:
                raise ValueError(
                    f"a hint at {site.header} for the tokens {site.spans} does not lie in rollout {number} of {known} "
                    "tokens: are the sites in the rollouts' order?"
                )
    hinted = [number for number, own in enumerate(kept) if own]
    if not hinted:
        return None
    # One transfer, of the rollouts that have a hint alone.
    rows: list[list[int]] = [[] for _ in kept]
    for number, row in zip(hinted, ids[hinted].tolist(), strict=True):
        rows[number] = row[paddings[number] : width + lengths[number]]
    batch = hinted_rows(rows, kept, pad_token_id=pad_token_id, left_padding=paddings)
    learned = torch.tensor([bool(length) for own, length in zip(sites, lengths, strict=True) for _ in own])
    site_of_pair_N = learned.nonzero()[:, 0][batch["sdpo_teacher_index"][:, 0]]
    # As TRL's tensors are, in type and place.
    batch["ctx_teacher_input_ids"] = batch["ctx_teacher_input_ids"].to(ids.dtype)
    batch["ctx_teacher_attention_mask"] = batch["ctx_teacher_attention_mask"].to(mask.dtype)
    batch = {name: tensor.to(ids.device) for name, tensor in batch.items()}
    return {"input_ids": ids, "attention_mask": mask, **batch}, site_of_pair_N.to(ids.device)


def _calls(message: Message) -> list[ToolCall]:
    return [call_of(one, "") for one in calls_in(message)]


def _one_each(name: str, values: Sequence[Value] | None, rollouts: Sequence[Rollout]) -> Sequence[Value]:
    if values is None or len(values) != len(rollouts):
        given = "none" if values is None else len(values)
        raise ValueError(f"{name} must have one value for each of the {len(rollouts)} rollouts, got {given}")
    return values
