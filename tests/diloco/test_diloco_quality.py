from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def _benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def _runs(**losses: list[float]) -> dict[str, list[dict[str, Any]]]:
    return {name: [{"loss": loss, "seconds": 1.0} for loss in of_name] for name, of_name in losses.items()}


def test_ratios_are_of_the_same_seed_and_the_worst_variant_is_judged() -> None:
    from diloco_quality import compared

    results, targets = compared(
        _runs(synchronous=[1.0, 2.0], float32=[1.0, 2.02], int4=[1.01, 2.02], streaming=[1.03, 2.06])
    )
    assert results["int4"]["vs_sync"] == pytest.approx(1.01)
    assert results["int4"]["vs_sync_plus_minus"] == pytest.approx(0.0, abs=1e-9)
    assert results["float32"]["vs_sync"] == pytest.approx(1.005)
    # The standard error of 1.00 and 1.01 is 0.005.
    assert results["float32"]["vs_sync_plus_minus"] == pytest.approx(12.706 * 0.005)
    assert [(target["name"], target["holds"]) for target in targets] == [
        ("worst_variant_vs_sync", False),
        ("int4_vs_fp32", True),
    ]
    assert [target["value"] for target in targets] == [pytest.approx(1.03), pytest.approx(1.005)]


def test_replicas_of_a_lossless_codec_end_where_float32_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import diloco_quality_setting as setting

    monkeypatch.setattr(setting, "HELD_OUT_ROWS", 16)
    length = setting.Length(start=2, steps=8, sync_every=4)
    start = setting.started(length)
    variants = {
        "synchronous": setting.Variant(is_synchronous=True),
        "float32": setting.Variant(),
        "sparse": setting.Variant(codec="sparse"),
        "int4": setting.Variant(codec="int4"),
        "streaming": setting.Variant(fragments=2, delay=1, alpha=0.5),
    }
    done = {name: setting.trained(variant, 0, length, start) for name, variant in variants.items()}
    losses = {name: figures["loss"] for name, figures in done.items()}
    assert losses["sparse"] == losses["float32"]
    assert len(set(losses.values())) == 4
    # (3 - 2/4) * 4 bytes of float32 and about an eighth of that, and the heads of the objects.
    assert 10 < done["float32"]["bytes_per_value"] < 11
    assert 1.3 < done["int4"]["bytes_per_value"] < 2


def test_small_steps_change_few_bfloat16_weights_and_all_float32_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    import diloco_quality_setting as setting

    length = setting.Length(start=2, steps=2, sync_every=1)
    monkeypatch.setattr(setting, "REPLICAS", 2)
    start = setting.started(length)
    few, many = (setting.density(1e-6, dtype, length, start)[0] for dtype in (torch.bfloat16, torch.float32))
    assert (few["auto"], many["auto"]) == ("sparse", "int4")
    assert few["density"] < 0.1 < 0.5 < many["density"]
    assert few["sparse_bytes"] < few["int4_bytes"] < many["sparse_bytes"]
