"""Channel 2's teacher over a generation with many errors: shared beginnings and a budget of tokens, against plain rows.

Both contestants let the same EMA teacher score the same rollouts, with every hint and without, and judge the hints.
"rows" has one row per hint, as long as the longest, in one pass over all hints of as many rollouts as a micro-batch
has, and makes another pass without hints. "shared" is what the trainers do. Both must find the same; one more process
compares every state, log-probability and gap of two rollouts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from harness import Benchmark, Prepared, Target, make_report, reset_peak
from reporting import BenchmarkError, in_child, judged, main, timed
from transformers import AutoModelForCausalLM, Qwen2Config

from composer_replication.channels import at, sdpo_pairs
from composer_replication.channels.hint_distillation import judge_sites
from composer_replication.channels.settings import ChannelSettings
from composer_replication.distillation.fused.losses import fused_token_logprobs
from composer_replication.trainer.channel_engine import ChannelEngine
from composer_replication.trainer.rollout_hints import hinted_batch
from composer_replication.trainer.sites import HintSite

DIFFERENCE = "difference"


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of a generation; lengths in tokens. After its prompt, a rollout has as many turns as
    errors, each with a tool's result."""

    vocabulary: int = 32_768
    hidden: int = 256
    intermediate: int = 704
    layers: int = 4
    rollouts: int = 8
    length: int = 2048
    prompt: int = 512
    errors: int = 6
    turn: int = 64
    hint: int = 64


class Judged(NamedTuple):
    """What a contestant found out about each hint and each token (P,), and the teacher's states (P, H)."""

    gap_S: torch.Tensor
    bare_P: torch.Tensor
    hinted_P: torch.Tensor
    states_PH: torch.Tensor


class Generation:
    """Rollouts with their hints, and a policy whose teacher has moved away from it."""

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.hidden // 64,
            num_key_value_heads=2,
            max_position_embeddings=2 * shape.length,
            tie_word_embeddings=True,
            # The usual 0.02 would make a model this small predict the same with and without a hint.
            initializer_range=0.05,
        )
        self.shape = shape
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.engine = ChannelEngine(
            model, ChannelSettings(beta_replay=0.0), pairs=None, channels={"sdpo": 0.1, "replay": 0.0}
        )
        assert self.engine.teacher is not None
        self.teacher = self.engine.teacher
        completion = shape.length - shape.prompt
        ids = torch.randint(shape.vocabulary, (shape.rollouts, shape.length))
        mask = torch.ones_like(ids)
        parts = {"prompt": slice(None, shape.prompt), "completion": slice(shape.prompt, None)}
        self.inputs = {f"{name}_ids": ids[:, part] for name, part in parts.items()}
        self.inputs |= {f"{name}_mask": mask[:, part] for name, part in parts.items()}
        starts = [shape.prompt + number * completion // shape.errors for number in range(shape.errors)]
        self.sites = [[self._site(start) for start in starts] for _ in range(shape.rollouts)]

    def _site(self, start: int) -> HintSite:
        hint_ids = tuple(torch.randint(self.shape.vocabulary, (self.shape.hint,)).tolist())
        spans = ((start, start + self.shape.turn),)
        return HintSite(hint_ids=hint_ids, header=start - 4, spans=spans, kind="feedback", source="tool", hint="")

    def batch(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The entries of channel 2, and the number of each pair's site."""
        built = hinted_batch(self.inputs, self.sites, pad_token_id=0)
        assert built is not None
        return built


def rows(generation: Generation) -> Judged:
    """A row per hint, a second pass for the gate."""
    batch, site_of_pair_P = generation.batch()
    student_P2, teacher_P2 = sdpo_pairs(batch)
    hinted = generation.teacher.hinted_states(batch, teacher_P2)
    without = {f"ctx_teacher_{name}": batch[name] for name in ("input_ids", "attention_mask")}
    bare = generation.teacher.hinted_states(without, student_P2)
    tokens_P = at(batch["input_ids"], student_P2)
    bare_P, hinted_P = (fused_token_logprobs(one.hidden, tokens_P, one.head) for one in (bare, hinted))
    gate = generation.engine.settings.sdpo.gate
    return Judged(judge_sites(gate, bare_P, hinted_P, site_of_pair_P).gap_S, bare_P, hinted_P, hinted.hidden)


def shared(generation: Generation) -> Judged:
    """What `ChannelEngine.judge` does, with a budget of a micro-batch's tokens."""
    batch, site_of_pair_P = generation.batch()
    bare_P, hinted_P, teacher = generation.engine.measured(batch)
    gate = generation.engine.settings.sdpo.gate
    return Judged(judge_sites(gate, bare_P, hinted_P, site_of_pair_P).gap_S, bare_P, hinted_P, teacher.hidden)


CONTESTANTS: Mapping[str, Callable[[Generation], Judged]] = {"rows": rows, "shared": shared}


def prepare(contestant: str, shape: Shape) -> Prepared:
    """A contestant over a generation; its figures are the sizes of what it found."""
    generation = Generation(shape)

    @torch.no_grad()
    def run() -> dict[str, float]:
        found = CONTESTANTS[contestant](generation)
        return {name: float(torch.linalg.vector_norm(one)) for name, one in found._asdict().items()}

    return Prepared(run)


@torch.no_grad()
def difference(shape: Shape) -> float:
    """The largest difference between the contestants in any value, relative to one plus its size."""
    generation = Generation(shape)
    found, expected = shared(generation), rows(generation)
    if not bool((expected.gap_S > 0.01).all()):
        raise BenchmarkError("hints change nothing: equal results would mean nothing")
    return max(
        float(((one - other).abs() / (1 + other.abs())).max()) for one, other in zip(found, expected, strict=True)
    )


BENCHMARK = Benchmark(
    name="teacher_pass",
    contestants=list(CONTESTANTS),
    prepare=prepare,
    full=Shape(),
    quick=Shape(4096, hidden=128, intermediate=352, layers=2, rollouts=4, length=1024, prompt=256, turn=32, hint=32),
    warm_up=Shape(vocabulary=512, hidden=128, intermediate=352, layers=2, rollouts=1, length=256, prompt=64, turn=16),
    tolerances=dict.fromkeys(Judged._fields, 1e-5),
    # On a busy machine threads wait for each other after every small operation, which says nothing about either.
    environment={"OMP_NUM_THREADS": "1"},
    targets=[
        Target("time_vs_rows", "seconds", "shared", "rows", 0.35),
        Target("peak_memory_vs_rows", "peak_bytes", "shared", "rows", 0.35),
    ],
)


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time and memory, and whether both found the same."""
    made = make_report(BENCHMARK, arguments.quick, arguments.repeats)
    made["machine"]["threads"] = int(BENCHMARK.environment["OMP_NUM_THREADS"])
    largest = in_child(DIFFERENCE, ["--quick"] * arguments.quick, BENCHMARK.environment)["largest"]
    made["targets"].append(judged("largest_difference", largest, "<=1e-05"))
    return made


def measured(contestant: str, arguments: argparse.Namespace) -> dict[str, float]:
    """In the child: one contestant's figures, or how far the two differ."""
    shape = BENCHMARK.shape(arguments.quick)
    if contestant == DIFFERENCE:
        return {"largest": difference(replace(shape, rollouts=2))}
    prepare(contestant, BENCHMARK.warm_up).run()
    run = prepare(contestant, shape).run
    before = reset_peak()
    figures = timed(run)
    return {**figures, "peak_bytes": figures["peak_bytes"] - before}


if __name__ == "__main__":
    main(report, measure=measured)
