"""``python -m my_ops``: compare the op with what it replaces, on each available device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from my_ops import BUILDERS, add_rms_norm

SHAPE = (512, 4096)


def with_torch(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    residual += x
    return torch.nn.functional.rms_norm(residual, weight.shape, weight, 1e-6)


def compare(device: str, dtype: torch.dtype) -> str:
    x, residual = (torch.randn(SHAPE, device=device, dtype=dtype) for _ in range(2))
    weight = torch.rand(SHAPE[-1], device=device, dtype=dtype)
    exact = with_torch(x.double(), residual.double(), weight.double())
    results = []
    for name, function in (("my_ops", add_rms_norm), ("torch", with_torch)):
        error = (function(x, residual.clone(), weight) - exact).abs().max().item()
        time_ms = milliseconds(function, x, residual.clone(), weight)
        results.append(f"{name} {time_ms:.2f} ms, off by {error:.1e} at most")
    return f"{device}, {dtype}: {'; '.join(results)}"


def milliseconds(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> float:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        function(*tensors)
        if tensors[0].device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


if __name__ == "__main__":
    for device in (name for name in BUILDERS if getattr(torch, name).is_available()):
        for dtype in (torch.float32, torch.bfloat16):
            print(compare(device, dtype))
