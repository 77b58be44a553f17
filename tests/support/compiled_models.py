"""Small models that torch.compile turns into C++: ``python compiled_models.py`` compares each with eager torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch.manual_seed(0)
LINEAR = nn.Linear(64, 32)
ENCODER = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def adam(param: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, square = mean.lerp(grad, 0.1), square * 0.999 + grad * grad * 0.001
    return param - 0.01 * mean / (square.sqrt() + 1e-8), mean, square


def forward_and_backward(x: Tensor) -> list[Tensor]:
    leaf = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.gelu(LINEAR(leaf)).sum(), leaf)
    return [gradient]


LARGE = 1 << 20  # elements, so that both threads work

MODELS: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "optimizer step": (adam, tuple(draw(LARGE).abs() for _ in range(4))),
    "linear, gelu and gradient": (forward_and_backward, (draw(16, 64),)),
    "transformer layer": (lambda x: ENCODER(x), (draw(2, 8, 32),)),
    "sum on threads": (lambda x: (x * 2 + 1).sum(), (draw(LARGE),)),
    "maximum on threads": (lambda x: (x.amax(), x.argmin()), (draw(LARGE),)),
    "scatter": (lambda x, i, y: x.scatter_add(0, i, y).sin(), (draw(50), torch.randint(0, 50, (4096,)), draw(4096))),
    "bfloat16": (lambda x: F.silu(x) * x, (draw(256, 256, dtype=torch.bfloat16),)),
    "complex functions": (
        lambda x: torch.tanh(x) + torch.erf(x) + x.abs().pow(0.3) + torch.lgamma(x.abs() + 1),
        (draw(2000),),
    ),
}


def main() -> None:
    torch.set_num_threads(2)
    for name, (function, arguments) in MODELS.items():
        start = time.perf_counter()
        compiled = torch.compile(function, fullgraph=name != "linear, gelu and gradient")
        close(name, compiled(*arguments), function(*arguments))
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    dynamic = torch.compile(lambda x: (x.softmax(-1) * 2).sum(0), dynamic=True)
    for rows in (3, 17, 1000):
        x = draw(rows, rows + 5)
        close("dynamic shapes", dynamic(x), (x.softmax(-1) * 2).sum(0))
    opened = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines()}
    runtimes = [name for name in sorted(opened) if name.startswith(("libgomp", "libomp", "libiomp"))]
    print(f"compared {len(MODELS) + 1} models; OpenMP: {runtimes}")


def close(name: str, actual: object, expected: object) -> None:
    def message(text: str) -> str:
        return f"{name}: {text}"

    # float32 rounds at 6e-8; sums of a million terms in another order differ by 1e-5 of the sum.
    is_half = getattr(expected, "dtype", None) == torch.bfloat16
    torch.testing.assert_close(
        actual, expected, rtol=1e-2 if is_half else 5e-5, atol=1e-2 if is_half else 1e-4, msg=message
    )


if __name__ == "__main__":
    main()
