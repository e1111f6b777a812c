"""The three channels in one readable loop: no trainer, no engine, nothing fused.

    python examples/reference_loop.py --steps 24

The laboratory model works in a house (`composer_replication.envs.house_style`), on tasks of one call. It knows how to
make a call and it obeys a hint, but not which of several synonymous tools this house takes. Every step it samples a few
calls per task:

    channel 1  Dr. GRPO: calls that the house accepts against the average of their group
    channel 2  hint self-distillation: where a call failed, the model's own slow copy reads a hint made of the house's
               error, scores the very same tokens, and the model is pulled toward it, on that turn only
    channel 3  DPO: the call that a teacher would have made against the one that failed

With `--replicas N` this process is one of N (REPLICA_RANK says which, from 0) that train on different tasks and average
their changes every few steps through the folder `--store`:

    for rank in 0 1; do REPLICA_RANK=$rank python examples/reference_loop.py --replicas 2 --store /tmp/meet & done

`ComposerReplicationTrainer` does the same with TRL's rollouts, many turns, memory-saving kernels and checkpoints.
Read this file to know what it computes.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from composer_replication.diloco.replica import Replica
from composer_replication.diloco.settings import DilocoSection, replica_rank
from composer_replication.distillation import dpo_loss
from composer_replication.envs.contract import call_tool, schemas_of, tools_of
from composer_replication.envs.house_style import Call, HouseStyle, make_tasks, right_calls
from composer_replication.envs.house_style.lessons import hint_for
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.opsd import generalized_jsd_loss
from composer_replication.rendering import generation_header_ids, hint_message, render_conversation

TASKS, GROUP, MAX_TOKENS = 4, 4, 36  # tasks per step, rollouts per task, tokens per rollout
ALPHA_SDPO, BETA_REPLAY = 1.0, 0.1  # the weights of channels 2 and 3
EMA_RATE = 0.05
LEARNING_RATE = 3e-4
TOOLS = schemas_of(HouseStyle())

_CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Rollout:
    """One sampled call, the house's judgement, and the hint that would have helped (None: no error to learn from)."""

    task: dict[str, Any]
    prompt_ids: list[int]
    completion_ids: list[int]
    reward: float
    advantage: float
    hint: str | None


@dataclass(frozen=True)
class Step:
    """What one optimiser step did: losses and active tokens by channel, and the share of calls that were accepted."""

    number: int
    losses: dict[str, float]
    active_tokens: dict[str, int]
    pass_rate: float


def train(steps: int, seed: int = 0, replica: Replica | None = None) -> Iterator[Step]:
    """Train the laboratory model and yield every step; as a replica, on tasks of its own, in step with the others."""
    seed += 0 if replica is None else replica.rank
    torch.manual_seed(seed)
    tokenizer, policy = laboratory_tokenizer(), laboratory_model()
    teacher = copy.deepcopy(policy).requires_grad_(False)  # follows the policy slowly: a live teacher collapses
    reference = copy.deepcopy(policy).requires_grad_(False)  # stays where the policy began
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    tasks = make_tasks("train", steps * TASKS, seed=seed, calls=1)
    if replica is not None:
        replica.wrap(policy, optimizer)
        replica.start()
    for number in range(steps):
        if replica is not None and replica.steps >= steps:  # one that came back goes on where the others are
            break
        tasks_now = tasks[number * TASKS : (number + 1) * TASKS]
        rollouts = [rollout for task in tasks_now for rollout in group_of_rollouts(policy, tokenizer, task)]
        logits = completion_logits(policy, [(r.prompt_ids, r.completion_ids) for r in rollouts])
        channels = {
            "grpo": policy_gradient(logits, rollouts),
            "sdpo": hint_distillation(teacher, tokenizer, logits, rollouts),
            "replay": preference(policy, reference, tokenizer, rollouts),
        }
        weights = {"grpo": 1.0, "sdpo": ALPHA_SDPO, "replay": BETA_REPLAY}
        loss = torch.stack([weights[name] * channel_loss for name, (channel_loss, _) in channels.items()]).sum()
        optimizer.zero_grad()
        loss.backward()
        if replica is not None:
            replica.saw(loss)
            replica.saw_tokens(sum(len(rollout.completion_ids) for rollout in rollouts))
        optimizer.step()  # as a replica, also the sync
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), policy.parameters(), strict=True):
                slow.lerp_(fast, EMA_RATE)
        yield Step(
            number,
            {name: channel_loss.item() for name, (channel_loss, _) in channels.items()},
            {name: tokens for name, (_, tokens) in channels.items()},
            sum(rollout.reward for rollout in rollouts) / len(rollouts),
        )
    if replica is not None:
        replica.finish()  # steps after the last sync are its own, and dropped


def group_of_rollouts(policy: Any, tokenizer: Any, task: dict[str, Any]) -> list[Rollout]:
    """Sample calls for one task and let the house judge them."""
    text = tokenizer.apply_chat_template(task["prompt"], tools=TOOLS, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer(text)["input_ids"]
    completions = sample(policy, prompt_ids, GROUP, tokenizer.eos_token_id)
    judged = [judge(task, tokenizer.decode(ids)) for ids in completions]
    # Dr. GRPO: no division by the group's standard deviation, which would favour tasks that are nearly always right
    # or nearly always wrong.
    mean = sum(reward for reward, _ in judged) / GROUP
    return [
        Rollout(task, prompt_ids, ids, reward, reward - mean, hint)
        for ids, (reward, hint) in zip(completions, judged, strict=True)
    ]


@torch.no_grad()
def sample(policy: Any, prompt_ids: list[int], count: int, end: int) -> list[list[int]]:
    """Completions of one prompt, token by token, each up to and including its end-of-turn token."""
    ids, cache = torch.tensor([prompt_ids] * count), None
    completions: list[list[int]] = [[] for _ in range(count)]
    for _ in range(MAX_TOKENS):
        output = policy(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        ids, cache = torch.multinomial(output.logits[:, -1].softmax(-1), 1), output.past_key_values
        for completion, (token,) in zip(completions, ids.tolist(), strict=True):
            if completion[-1:] != [end]:
                completion.append(token)
        if all(completion[-1] == end for completion in completions):
            break
    return completions


def judge(task: dict[str, Any], said: str) -> tuple[float, str | None]:
    """Make the call that was sampled. What comes back is the reward, and a hint if the house answered with an error."""
    house = HouseStyle()
    house.reset(**task)
    try:
        made = json.loads(_CALL.findall(said)[0])
        call = Call(str(made["name"]), dict(made["arguments"]))
    except (IndexError, KeyError, TypeError, ValueError):
        return 0.0, None  # no call was made, so there is no error that a hint could be made of
    answer, failed = call_tool(tools_of(house), call.tool, call.arguments)
    return house.get_reward(), hint_for(call, answer["error"]) if failed else None


def completion_logits(model: Any, rows: Sequence[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
    """For rows of (context, completion): the logits that predict each completion's tokens, (tokens, vocabulary) each.

    Rows are padded on the right, where a causal model does not look.
    """
    width = max(len(context) + len(completion) for context, completion in rows)
    ids = torch.tensor(
        [[*context, *completion, *[0] * (width - len(context) - len(completion))] for context, completion in rows]
    )
    logits = model(ids, use_cache=False).logits
    # The prediction of a token stands one column before it.
    return [
        logits[row, len(context) - 1 : len(context) - 1 + len(completion)]
        for row, (context, completion) in enumerate(rows)
    ]


def log_probabilities(logits: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Of the tokens that were said."""
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)


def policy_gradient(logits: Sequence[torch.Tensor], rollouts: Sequence[Rollout]) -> tuple[torch.Tensor, int]:
    """Channel 1. The rollouts are the policy's own and used once, so the ratio to the sampling policy is 1.

    The sum is divided by a constant: by each rollout's own length, long wrong answers would get away cheaply.
    """
    terms = [
        rollout.advantage * log_probabilities(row, rollout.completion_ids).sum()
        for row, rollout in zip(logits, rollouts, strict=True)
    ]
    tokens = sum(len(rollout.completion_ids) for rollout in rollouts if rollout.advantage != 0)
    return -torch.stack(terms).sum() / (len(rollouts) * MAX_TOKENS), tokens


def hint_distillation(
    teacher: Any, tokenizer: Any, logits: Sequence[torch.Tensor], rollouts: Sequence[Rollout]
) -> tuple[torch.Tensor, int]:
    """Channel 2: the turns that failed, scored again after a hint; the same tokens, nothing is sampled anew."""
    hinted, student_logits = [], []
    for row, rollout in zip(logits, rollouts, strict=True):
        if rollout.hint is None:
            continue
        prompt = rollout.task["prompt"]
        hint_ids, _ = hint_message(tokenizer, prompt, rollout.hint, tools=TOOLS)
        # The hint is the last message before the header that prompts the assistant.
        header = len(rollout.prompt_ids) - len(generation_header_ids(tokenizer, prompt, tools=TOOLS))
        context = [*rollout.prompt_ids[:header], *hint_ids, *rollout.prompt_ids[header:]]
        hinted.append((context, rollout.completion_ids))
        student_logits.append(row)
    if not hinted:
        return torch.zeros(()), 0
    with torch.no_grad():
        teacher_logits = completion_logits(teacher, hinted)
    student_TV, teacher_TV = torch.cat(student_logits), torch.cat(teacher_logits)
    return generalized_jsd_loss(student_TV.unsqueeze(0), teacher_TV.unsqueeze(0), beta=0.5), len(student_TV)


def preference(policy: Any, reference: Any, tokenizer: Any, rollouts: Sequence[Rollout]) -> tuple[torch.Tensor, int]:
    """Channel 3: for one call that failed, what a replayed teacher would have done instead (here: the right call)."""
    failed = next((rollout for rollout in rollouts if rollout.hint is not None), None)
    if failed is None:
        return torch.zeros(()), 0
    (right,) = right_calls(failed.task["steps"])
    rendered = render_conversation(tokenizer, [*failed.task["prompt"], right.message()], tools=TOOLS)
    chosen_ids = rendered.ids[rendered.turns[0].start : rendered.turns[0].stop]
    rows = [(failed.prompt_ids, chosen_ids), (failed.prompt_ids, failed.completion_ids)]
    chosen, rejected = summed_log_probabilities(policy, rows)
    with torch.no_grad():
        chosen_reference, rejected_reference = summed_log_probabilities(reference, rows)
    tokens = len(chosen_ids) + len(failed.completion_ids)
    return dpo_loss(chosen, rejected, chosen_reference, rejected_reference, beta=0.1), tokens


def summed_log_probabilities(model: Any, rows: Sequence[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
    """Of each row's completion, as tensors of one number."""
    logits = completion_logits(model, rows)
    return [log_probabilities(row, ids).sum().reshape(1) for row, (_, ids) in zip(logits, rows, strict=True)]


def main() -> None:
    """Train, and print a line per step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1, help="processes that train together")
    parser.add_argument("--store", type=Path, help="folder where replicas meet, new for each run")
    arguments = parser.parse_args()
    if arguments.replicas > 1 and arguments.store is None:
        parser.error("--replicas needs a folder to meet in: give --store DIR")
    torch.set_num_threads(1)  # for a model this small a second thread costs more than it computes
    console = Console(highlight=False, soft_wrap=True)
    console.print("Losses, and the tokens they are over:")
    replica = None
    if arguments.replicas > 1:
        settings = DilocoSection(
            replicas=arguments.replicas, backend="store", store=str(arguments.store), run_id="reference", sync_every=6
        )
        rank = replica_rank(settings)
        replica = Replica(settings, rank, arguments.store / f"replica-{rank}")
    for step in train(arguments.steps, arguments.seed, replica):
        channels = (f"{name} {loss:7.4f} /{step.active_tokens[name]:4d}" for name, loss in step.losses.items())
        console.print(f"step {step.number:2d}  {'  '.join(channels)}  calls accepted {step.pass_rate:4.0%}")
    if replica is not None:
        replica.close()


if __name__ == "__main__":
    main()
