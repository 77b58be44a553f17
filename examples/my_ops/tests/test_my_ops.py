"""The op against torch in float64, on each device that this machine has."""

from __future__ import annotations

import my_ops
import pytest
import torch

DEVICES = ["cpu"]
DEVICES += ["cuda"] if torch.cuda.is_available() else []  # cuda
DEVICES += ["xpu"] if torch.xpu.is_available() else []  # sycl


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (2, 3, 129), (0, 5)])
def test_values_match_torch(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, residual = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    weight = torch.rand(shape[-1], device=device, dtype=dtype)
    total = x + residual
    expected = torch.nn.functional.rms_norm(total.double(), weight.shape, weight.double(), 1e-6)

    out = my_ops.add_rms_norm(x, residual, weight)

    assert torch.equal(residual, total)
    tolerance = 1e-5 if dtype is torch.float32 else 2.0**-7
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_a_weight_of_another_length_is_an_error() -> None:
    x, residual = torch.ones(2, 4), torch.ones(2, 4)
    with pytest.raises(ValueError, match="one element for each"):
        my_ops.add_rms_norm(x, residual, torch.ones(5))
    assert torch.equal(residual, torch.ones(2, 4))
