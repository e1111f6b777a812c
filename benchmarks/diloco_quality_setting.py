"""The setting of `diloco_quality.py`: the text, the model, training in step or as replicas, and deltas of one round."""

from __future__ import annotations

import math
import sysconfig
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

from composer_replication.diloco import make_diloco_outer_loop
from composer_replication.diloco.serverless import ObjectStoreAllReduce, ObjectStoreManager
from composer_replication.diloco.serverless.codecs import encode
from composer_replication.diloco.serverless.packing import pack

REPLICAS = 4
WIDTH, ROWS, HELD_OUT_ROWS = 64, 8, 512  # bytes of text in a row, rows per replica and step
HIDDEN, LAYERS = 64, 2
WARM_UP, LAST_SHARE = 0.05, 0.05  # of the steps, and of the learning rate
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Variant:
    """A way to train: what is compared, and the rates that were best in the sweep."""

    lr: float = 6e-3
    codec: str = "float32"
    averaging: str = "mean"
    fragments: int = 1
    delay: int = 0
    alpha: float = 0.0
    outer_lr: float = 0.5
    momentum: float = 0.8
    is_synchronous: bool = False


@dataclass(frozen=True)
class Length:
    """Steps of all trainings, so that the rows of the start are not used again, and steps between two syncs."""

    start: int
    steps: int
    sync_every: int


def rows(length: Length, seed: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Training rows (steps, replicas, rows, bytes), and held-out rows, which are the same for all seeds.

    The text is the source of Python's standard library. A seed is an order of the rows; None has the start's rows.
    """
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = bytearray(b"".join(source.read_bytes() for source in sources))
    count, per_step = len(text) // (WIDTH + 1), REPLICAS * ROWS
    every = torch.frombuffer(text, dtype=torch.uint8)[: count * (WIDTH + 1)].view(count, -1).long()
    every = every[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    held_out, for_start, rest = every.tensor_split([HELD_OUT_ROWS, HELD_OUT_ROWS + length.start * per_step])
    steps, source = (length.start, for_start) if seed is None else (length.steps, rest)
    if len(source) < steps * per_step:
        raise ValueError(f"{len(sources)} source files make {count} rows, too few for {length}")
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed or 0))[: steps * per_step]
    return source[order].view(steps, REPLICAS, ROWS, -1), held_out


def started(length: Length) -> dict[str, torch.Tensor]:
    """Weights that all variants begin with, trained in step."""
    model = _model(None)
    _train_in_step(model, Variant(lr=8e-3), rows(length, None)[0])
    return {name: tensor.detach() for name, tensor in model.named_parameters()}


def trained(variant: Variant, seed: int, length: Length, start: Weights) -> dict[str, float]:
    """Train on all rows, and return the held-out loss of the shared weights and the bytes that each replica moved."""
    training, held_out = rows(length, seed)
    if variant.is_synchronous:
        model = _model(start)
        _train_in_step(model, variant, training)
        return {"loss": held_out_loss(model, held_out)}
    place, turn = f"memory://{uuid.uuid4().hex}", threading.Lock()
    with ThreadPoolExecutor(REPLICAS) as threads:
        running = [
            threads.submit(_replica, variant, training[:, rank], length.sync_every, start, place, rank, turn)
            for rank in range(REPLICAS)
        ]
    model, moved = running[0].result()
    losses = [held_out_loss(done.result()[0], held_out) for done in running]
    if variant.averaging != "decoupled" and len(set(losses)) > 1:
        raise RuntimeError(f"the replicas' shared weights differ: losses {losses}")
    values = sum(parameter.numel() for parameter in model.parameters())
    return {"loss": losses[0], "bytes_per_value": moved / values / (length.steps // length.sync_every)}


def density(lr: float, dtype: torch.dtype, length: Length, start: Weights) -> list[dict[str, Any]]:
    """Train every replica with a constant rate as in post-training, and look at the deltas after 1, 10 and 50 steps.

    Of float32 weights, those of the copies in bfloat16 that a model computes with are shown too.
    """
    training = rows(length, 0)[0][:50]
    deltas: dict[tuple[str, int], list[torch.Tensor]] = {}
    for rank in range(REPLICAS):
        model = _model(start).to(dtype)
        before = _views(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0)
        for step, ids in enumerate(training[:, rank], 1):
            _step(model, optimizer, ids)
            for view, flat in _views(model).items() if step in (1, 10, 50) else ():
                deltas.setdefault((view, step), []).append(before[view] - flat)
    figures = []
    for (view, step), of_step in deltas.items():
        mean = torch.stack(of_step).mean(0)
        figures.append(
            {"weights": view, "lr": lr, "steps": step, "density": _share(of_step[0]), "density_of_mean": _share(mean)}
            | {f"{codec}_bytes": encode(of_step[0], codec).nbytes / mean.numel() for codec in ("sparse", "int4")}
            | {"auto": encode(of_step[0], "auto").codec, "auto_of_mean": encode(mean, "auto").codec}
        )
    return figures


def _views(model: Any) -> dict[str, torch.Tensor]:
    weights = [parameter.detach() for parameter in model.parameters()]
    if weights[0].dtype == torch.bfloat16:
        return {"bfloat16": pack(weights)}
    return {"float32": pack(weights), "bfloat16 copy of float32": pack([weight.bfloat16() for weight in weights])}


def _share(delta: torch.Tensor) -> float:
    return torch.count_nonzero(delta).item() / delta.numel()


def _train_in_step(model: Any, variant: Variant, training: torch.Tensor) -> None:
    optimizer, schedule = _inner(model, variant, len(training))
    for ids in training.flatten(1, 2):
        _step(model, optimizer, ids)
        schedule.step()


def _replica(
    variant: Variant, training: torch.Tensor, sync_every: int, start: Weights, place: str, rank: int, turn: Any
) -> tuple[Any, int]:
    """Train one replica in its own thread; return its model, with the shared weights, and the bytes that it moved."""
    with turn:
        model = _model(start)
    optimizer, schedule = _inner(model, variant, len(training))
    manager = ObjectStoreManager(
        ObjectStoreAllReduce(
            place,
            rank,
            REPLICAS,
            run_id="quality",
            codec=variant.codec,
            averaging=variant.averaging,
            poll_interval_s=0.02,
            timeout_s=300.0,
        )
    )
    if variant.fragments == 1:
        manager.names = [name for name, _ in model.named_parameters()]
    with make_diloco_outer_loop(
        manager,
        _fragments(model, variant.fragments),
        optimizer,
        outer_lr=variant.outer_lr,
        outer_momentum=variant.momentum,
        sync_every=sync_every,
        fragment_sync_delay=variant.delay,
        fragment_update_alpha=variant.alpha,
    ) as outer:
        for ids in training:
            manager.report_progress(ids[:, 1:].numel(), 1)
            _step(model, optimizer, ids, turn)
            schedule.step()
        outer.restore_global()
    return model, manager.bytes_up + manager.bytes_down


def _model(start: Weights | None) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=256,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        initializer_range=0.05,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    if start is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(start[name])
    return model


def _inner(model: Any, variant: Variant, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), variant.lr, betas=(0.9, 0.95), weight_decay=0.01)

    def share(step: int) -> float:
        done = (step + 1) / steps
        return min(done / WARM_UP, LAST_SHARE + (1 - LAST_SHARE) * (1 + math.cos(math.pi * done)) / 2)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def _step(model: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor, turn: Any = None) -> None:
    with turn or threading.Lock():  # threads that compute at once only disturb each other
        _loss(model, ids).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def _loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Any, held_out: torch.Tensor) -> float:
    """Mean next-byte loss in nats."""
    parts = held_out.split(64)
    return sum(_loss(model, ids).item() * len(ids) for ids in parts) / len(held_out)


def _fragments(model: Any, count: int) -> list[torch.nn.Module]:
    """The whole model, or its lower and its upper half; the embeddings, which are tied, are in the lower one."""
    if count == 1:
        return [model]
    layers, half = model.model.layers, LAYERS // 2
    return [
        torch.nn.ModuleList([model.model.embed_tokens, *layers[:half]]),
        torch.nn.ModuleList([*layers[half:], model.model.norm]),
    ]
