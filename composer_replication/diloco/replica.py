"""One replica of a run: a manager and an outer loop around the inner optimiser, and a record of every round.

FOLDER/rounds.jsonl has a line for each sync: the fields of `OuterRound`, the optimiser steps done, the mean loss of the
steps since the last one, and a digest of the shared state, which is the same in all replicas. A replica that was killed
and went on from a checkpoint appends to it, so a round may be there twice. FOLDER/at_sync is there while a replica
meets the others at its start, and during an optimiser step: one that is in it for long waits for others.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from composer_replication._optional import MissingExtraError, is_available
from composer_replication.diloco.fragments import trainable_fragments
from composer_replication.diloco.settings import LIGHTHOUSE_VARIABLE, ROUNDS_FILE, SYNC_FILE, DilocoSection

if TYPE_CHECKING:
    from composer_replication.diloco.rounds import OuterLoop, OuterRound

_log = logging.getLogger(__name__)


class Replica:
    """One of the replicas of a run. In order: `wrap`, perhaps `load_state_dict`, `start`, the steps, `close`.

    Args:
        settings: the same in all replicas.
        rank: number of this one, from 0.
        folder: where its rounds are recorded.

    Raises:
        ValueError: a setting is missing.
        MissingExtraError: torchft is not installed.
    """

    def __init__(self, settings: DilocoSection, rank: int, folder: Path) -> None:
        if not is_available("torchft"):
            raise MissingExtraError("diloco", "torchft")
        if settings.backend == "store" and settings.store is None:
            raise ValueError(
                "diloco.store: it is not set; give a folder or an address that all replicas reach, or start them with "
                "`composer-replication diloco run`"
            )
        self._lighthouse = settings.lighthouse or os.environ.get(LIGHTHOUSE_VARIABLE)
        if settings.backend == "torchft" and self._lighthouse is None:
            raise ValueError(
                f"diloco.lighthouse: it is not set, and neither is {LIGHTHOUSE_VARIABLE}; give the address of the "
                "lighthouse, or start the replicas with `composer-replication diloco run`"
            )
        self.settings, self.rank, self._folder = settings, rank, folder
        self.steps = 0
        self._at_sync = folder / SYNC_FILE
        self._hooks: list[Any] = []
        self._outer: OuterLoop | None = None
        self._manager: Any = None
        self._is_in_step = False
        self._losses: list[torch.Tensor] = []
        self._steps_of_losses = 0
        self._tokens: Any = 0

    @property
    def outer(self) -> OuterLoop:
        """The outer loop, once there is one."""
        assert self._outer is not None
        return self._outer

    def wrap(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        take_over: Callable[[int, Any], None] | None = None,
        hand_over: Callable[[], Any] | None = None,
    ) -> None:
        """Make the outer loop of this model and optimiser; the parameters are the shared ones now.

        Args:
            take_over: called in a replica that was healed, with the steps that are done by now and the other's state.
                In a step, that step counts as done.
            hand_over: the state for it, as nested dicts and lists of tensors and JSON values.

        Raises:
            OSError: the lighthouse or the store cannot be reached.
        """
        from composer_replication.diloco.outer_loop import make_diloco_outer_loop

        settings, device = self.settings, next(model.parameters()).device
        self._manager = self._make_manager(device)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._count_step),
        ]
        self._outer = make_diloco_outer_loop(
            self._manager,
            trainable_fragments(model, settings.fragments),
            optimizer,
            outer_lr=settings.outer_lr,
            outer_momentum=settings.outer_momentum,
            nesterov=settings.nesterov,
            sync_every=settings.sync_every,
            fragment_sync_delay=settings.sync_delay,
            fragment_update_alpha=settings.update_alpha,
            min_participants=settings.wanted,
            on_round=self._record,
        )

        def load(state: Any) -> None:
            self.steps = self._position(state)
            if take_over is not None:
                take_over(self.steps - self._is_in_step, state["more"])

        def skip(steps: int) -> None:
            self.steps += steps
            if take_over is not None and steps:
                take_over(self.steps - self._is_in_step, {})

        def save() -> Any:
            more = hand_over() if hand_over is not None else None
            return {"steps": self.steps, "round": self._manager.current_step(), "more": more}

        self._outer.notice("replica", load, save)
        self._outer.on_skipped = skip

    def start(self, steps: int = 0) -> None:
        """Begin to count steps and to synchronise; meets the other replicas, and heals if it is behind.

        Args:
            steps: those that were done before.
        """
        self.steps = steps
        self._folder.mkdir(parents=True, exist_ok=True)
        self._at_sync.touch()
        self.outer.__enter__()
        self._at_sync.unlink(missing_ok=True)
        # After the outer loop's own, which is when the step is over.
        self._hooks.append(self.outer._local_optimizer.register_step_post_hook(self._end_step))

    def saw(self, loss: torch.Tensor) -> None:
        """Note the loss of a micro-batch, as its share of the step's."""
        self._losses.append(loss.detach())

    def saw_tokens(self, tokens: Any) -> None:
        """Count tokens that this replica is trained on: a number, or a tensor with one."""
        self._tokens = self._tokens + tokens

    def finish(self) -> None:
        """End with the shared parameters: wait for a round under way, and drop local steps after the last sync."""
        self.outer.finish()

    def rest(self) -> None:
        """Take part in no more rounds; further steps are local, and `finish` drops them."""
        self.outer.__exit__(None, None, None)

    def state_dict(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The state of the outer loop for a checkpoint."""
        return self.outer.state_dict()

    def load_state_dict(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.outer.load_state_dict(tensors, numbers)

    def close(self) -> None:
        """Leave the run."""
        for hook in self._hooks:
            hook.remove()
        if self._outer is not None:
            self.rest()
        if self._manager is not None and self.settings.backend == "torchft":
            from composer_replication.diloco.torchft_replica import close

            close(self._manager)
        self._at_sync.unlink(missing_ok=True)
        self._hooks, self._outer, self._manager = [], None, None

    def _make_manager(self, device: torch.device) -> Any:
        settings = self.settings
        if settings.backend == "torchft":
            from composer_replication.diloco.torchft_replica import torchft_manager

            assert self._lighthouse is not None
            return torchft_manager(
                self.rank,
                lighthouse=self._lighthouse,
                min_replicas=settings.wanted,
                quorum_timeout_s=settings.timeout_s,
                hostname=settings.hostname,
                device=device,
            )
        from composer_replication.diloco.serverless.allreduce import ObjectStoreAllReduce
        from composer_replication.diloco.serverless.manager import ObjectStoreManager

        return ObjectStoreManager(
            ObjectStoreAllReduce(
                str(settings.store),
                self.rank,
                settings.replicas,
                run_id=settings.run_id,
                codec=settings.codec,
                averaging=settings.averaging,
                min_participants=settings.min_participants,
                grace_s=settings.grace_s,
                timeout_s=settings.timeout_s,
                poll_interval_s=settings.poll_interval_s,
            )
        )

    def _position(self, state: Any) -> int:
        """The steps done, of the other's state: a manager that heals to the shared parameters repeats its round."""
        repeats = getattr(self._manager, "heals_to_shared", False) and not getattr(self._manager, "never_waits", False)
        between = self.settings.sync_every // self.settings.fragments
        # Learners that never wait are at different steps.
        return int(state["round"]) * between if repeats else max(self.steps, int(state["steps"]))

    def _before_step(self, *_: Any) -> None:
        self._is_in_step = True
        self._at_sync.touch()
        if hasattr(self._manager, "report_progress"):
            self._manager.report_progress(float(self._tokens), 1.0)
            self._tokens = 0

    def _count_step(self, *_: Any) -> None:
        self.steps += 1
        self._steps_of_losses += 1

    def _end_step(self, *_: Any) -> None:
        self._is_in_step = False
        self._at_sync.unlink(missing_ok=True)

    def _record(self, outer_round: OuterRound) -> None:
        loss = float(torch.stack(self._losses).sum()) / max(self._steps_of_losses, 1) if self._losses else None
        self._losses, self._steps_of_losses = [], 0
        line = {**asdict(outer_round), "step": self.steps, "loss": loss, "digest": self.outer.digest()}
        with (self._folder / ROUNDS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        _log.info("round %d with %d replicas", outer_round.round, outer_round.participants)
