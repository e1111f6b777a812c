"""Products into float32 buffers: exact for half-precision operands, whichever dimension is long and is cut."""

from __future__ import annotations

import pytest
import torch

from composer_replication.distillation.fused import sweep as products


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(4, 5, 17), (4, 17, 5), (17, 4, 5)])
@pytest.mark.parametrize("fresh", [True, False])
def test_product_is_that_of_the_exact_operands(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int, inner: int, columns: int, fresh: bool
) -> None:
    monkeypatch.setattr(products, "_WIDENED_SLICE", 3)
    left, right = torch.randn(rows, inner), torch.randn(inner, columns).to(dtype)
    out = torch.randn(rows, columns)
    expected = (0 if fresh else out.double()) + left.double() @ right.double()
    products.accumulate_product(out, left, right, fresh=fresh)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_projection_adds_the_bias_and_passes_logits_through() -> None:
    hidden, weight, bias = torch.randn(3, 4), torch.randn(7, 4), torch.randn(7)
    out = torch.full((3, 7), torch.nan)
    products.project_into(out, hidden, weight, bias)
    torch.testing.assert_close(out, hidden @ weight.T + bias)
    logits = torch.randn(3, 7)
    products.project_into(out, logits, None, None)
    assert torch.equal(out, logits)
