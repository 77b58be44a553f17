"""``python -m my_ops``: the op beside what it replaces, on each device that is here."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from my_ops import add_rms_norm

SHAPE = (512, 4096)


def with_torch(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    residual += x
    return torch.nn.functional.rms_norm(residual, weight.shape, weight, 1e-6)


def compare(device: str, dtype: torch.dtype) -> str:
    x, residual = (torch.randn(SHAPE, device=device, dtype=dtype) for _ in range(2))
    weight = torch.rand(SHAPE[-1], device=device, dtype=dtype)
    exact = with_torch(x.double(), residual.double(), weight.double())
    told = []
    for name, function in (("my_ops", add_rms_norm), ("torch", with_torch)):
        error = (function(x, residual.clone(), weight) - exact).abs().max().item()
        told.append(f"{name} {milliseconds(function, x, residual.clone(), weight):.2f} ms, off by {error:.1e} at most")
    return f"{device}, {dtype}: {'; '.join(told)}"


def milliseconds(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> float:
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        function(*tensors)
        if tensors[0].device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times) * 1e3


if __name__ == "__main__":
    for device in ("cpu", *(name for name in ("cuda", "xpu") if getattr(torch, name).is_available())):
        for dtype in (torch.float32, torch.bfloat16):
            print(compare(device, dtype))
