"""From rollouts to hint sites: turns that went wrong get a hint, rollouts that failed can be told what a sibling did.

What cannot be used is counted, never dropped in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar, get_args

from composer_replication._arguments import check_choice, check_count
from composer_replication.channels.hint_distillation import HintGenerator, HintSourceKind, SDPOTarget
from composer_replication.trainer.rollouts.failed_turns import failed_turns
from composer_replication.trainer.rollouts.hint_sites import HintSite, SitePlacer
from composer_replication.trainer.rollouts.rollout import GenerationHeaders, Rollout, sampled_turns
from composer_replication.trainer.rollouts.siblings import SIBLING_CHARACTERS, sibling_solutions

Value = TypeVar("Value")


def find_hint_sites(
    rollouts: Sequence[Rollout],
    *,
    tokenizer: Any,
    hint_generator: HintGenerator,
    hint_source: HintSourceKind = "error",
    hint_role: str = "system",
    sdpo_target: SDPOTarget = "erring_turn",
    feedback: Sequence[Any] | None = None,
    reward_texts: Sequence[Any] | None = None,
    rewards: Sequence[float] | None = None,
    groups: Sequence[Hashable] | None = None,
    succeeded: Sequence[bool] | None = None,
    max_length: int | None = None,
    sibling_characters: int = SIBLING_CHARACTERS,
) -> tuple[list[list[HintSite]], Counter[str]]:
    """The hint sites of each rollout, at most one per turn, and what became of all of them.

    Args:
        rollouts: as sampled.
        tokenizer: renders as the rollouts' prompts were rendered; see `TemplatedTokenizer`.
        hint_generator: asked about every error but those that are not the student's mistake.
        hint_source: "error" (turns that went wrong), "sibling" (failed rollouts are told of a successful one of their
            group, and learn on all their turns) or "both": the errors of failed rollouts are told of the sibling too,
            and failed rollouts without such a site of the sibling alone.
        hint_role: the role of the hint's message; "user" where the template refuses it.
        sdpo_target: the turn that went wrong, or the one behind it.
        feedback: per rollout, what its environment says of its turns, in one of the shapes of `turn_feedback.remarks`;
            texts are hints as they are.
        reward_texts: the same, from reward functions.
        rewards: per rollout; for siblings.
        groups: per rollout, what stands for its prompt; for siblings.
        succeeded: per rollout; for siblings.
        max_length: of a teacher's row in tokens; a site that needs more is left out whole.
        sibling_characters: how much of a sibling is told.

    Returns:
        The sites, and counts. A rollout without a site counts at least one reason.
        By site: "sites", "hint_role_user" (the template refused `hint_role`).
        By failed turn that got no site: "not_the_students_mistake", "outcome" (a failing test and the like, which is
        charged to no turn), "no_hint", "no_next_turn", "no_such_turn", "header_not_found",
        "hint_not_rendered" (the template refuses it), "too_long".
        By rollout: "no_error", "succeeded", "no_sibling", "turns_do_not_match", "truncated" (nothing was sampled, or
        the limit cut its call off).

    Raises:
        ValueError: an unknown choice, not one value per rollout, feedback of an unknown shape.
    """
    check_choice("hint_source", hint_source, get_args(HintSourceKind))
    check_choice("sdpo_target", sdpo_target, get_args(SDPOTarget))
    check_count("max_length", max_length)
    feedback = _one_each("feedback", [None] * len(rollouts) if feedback is None else feedback, rollouts)
    reward_texts = _one_each("reward_texts", [None] * len(rollouts) if reward_texts is None else reward_texts, rollouts)
    solutions, failed = [""] * len(rollouts), [False] * len(rollouts)
    if hint_source != "error":
        succeeded = _one_each("succeeded", succeeded, rollouts)
        failed = [not success for success in succeeded]
        solutions = sibling_solutions(
            rollouts,
            rewards=_one_each("rewards", rewards, rollouts),
            groups=_one_each("groups", groups, rollouts),
            succeeded=succeeded,
            tokenizer=tokenizer,
            max_characters=sibling_characters,
        )
    placer = SitePlacer(tokenizer, hint_role, max_length)
    counts = placer.counts
    headers = GenerationHeaders(tokenizer)
    found: list[list[HintSite]] = []
    for index, rollout in enumerate(rollouts):
        sites: list[HintSite] = []
        found.append(sites)
        turns = sampled_turns(rollout, headers)
        if not turns:
            counts["turns_do_not_match" if any(rollout.generated) else "truncated"] += 1
            continue
        solution = solutions[index]
        if hint_source == "sibling" and not failed[index]:
            counts["succeeded"] += 1
        if hint_source != "sibling":
            for failure in failed_turns(
                rollout,
                turns,
                tokenizer=tokenizer,
                hint_generator=hint_generator,
                feedback=feedback[index],
                reward_text=reward_texts[index],
                counts=counts,
            ):
                is_recovery = sdpo_target == "recovery_turn"
                number = failure.turn + is_recovery
                if number == len(turns) or (is_recovery and failure.shown_later):
                    counts["no_next_turn"] += 1
                    continue
                hint = f"{solution}\n\n{failure.hint}" if solution else failure.hint
                sites += placer.place(rollout, [turns[number]], kind=failure.kind, source=failure.source, hint=hint)
        if failed[index] and not sites:
            if solution:
                sites += placer.place(rollout, turns, kind="sibling", source="sibling", hint=solution)
            else:
                counts["no_sibling"] += 1
    return found, counts


def _one_each(name: str, values: Sequence[Value] | None, rollouts: Sequence[Rollout]) -> Sequence[Value]:
    if values is None or len(values) != len(rollouts):
        given = "none" if values is None else len(values)
        raise ValueError(f"{name} must have one value for each of the {len(rollouts)} rollouts, got {given}")
    return values
