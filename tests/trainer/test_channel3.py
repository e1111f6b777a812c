"""Channel 3 beside GRPO in a house: what the anchor on the chosen is for."""

from __future__ import annotations

import statistics
from pathlib import Path

from trainer.live_run import house_pairs, metrics, trainer

from composer_replication.run.presets import PRESETS

EARNED = {key.rpartition(".")[2]: one.value for key, one in PRESETS["recommended"].items() if "replay" in key}
STEPS = 8


def _run(folder: Path, seed: int, nll_weight: float) -> tuple[float, float]:
    """The mean reward, and the chosen's mean reward in the second half: in the first, both raise it."""
    live = trainer(
        folder,
        args={"max_steps": STEPS, "seed": seed, "per_device_train_batch_size": 4},
        replay_dataset=house_pairs(28),
        replay_batch_size=8,
        alpha_sdpo=0.0,
        beta_replay=EARNED["beta"],
        replay_nll_weight=nll_weight,
        gradient_share_steps=0,
    )
    live.train()
    logged = metrics(folder)
    assert len(logged) == STEPS
    # Either way the pairs are learned: the distance grows.
    assert logged[-1]["channels/replay/margin"] > logged[1]["channels/replay/margin"] > 0
    late = [line["channels/replay/chosen_reward"] for line in logged[STEPS // 2 :]]
    return statistics.mean(line["reward"] for line in logged), statistics.mean(late)


def test_the_anchor_keeps_the_chosen_likely_and_the_reward_up(tmp_path: Path) -> None:
    plain, anchored = (
        [_run(tmp_path / f"{weight}-{seed}", seed, weight) for seed in (1, 2)] for weight in (0.0, EARNED["nll_weight"])
    )
    assert all(ours > theirs + 0.3 for (_, ours), (_, theirs) in zip(anchored, plain, strict=True))
    (plain_reward, _), (anchored_reward, anchored_chosen) = (
        map(statistics.mean, zip(*runs, strict=True)) for runs in (plain, anchored)
    )
    assert anchored_chosen > 0.5
    assert anchored_reward > plain_reward
