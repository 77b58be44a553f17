"""What benchmarks.adam measures: its cases, and the memory in which a case's contenders work."""

from __future__ import annotations

import dataclasses
import os
import weakref
from itertools import accumulate

import torch

MILLION = 2**20
STREAM_NUMEL = 64 * MILLION
LARGE_NUMEL = 65536  # such tensors fill their pages
# Between large allocations a page is left, by malloc too. Without it arrays of 2^n bytes would be 2^n apart, and Zen 2
# takes one address for the other: all in bfloat16 took 175 ms for 256M elements, where it takes 110 to 130.
GAP_BYTES = 4096
STATE_BYTES = {torch.float32: 4.0, torch.bfloat16: 2.0, torch.uint8: 1 + 4 / 256}


@dataclasses.dataclass(frozen=True)
class Case:
    """``count`` tensors of ``numel`` elements each, gradients of the parameters' type.

    Attributes:
        states: ``CPUAdam``'s way of keeping the moments.
        least_of_limit: the share of the limit that is asked for, None where nothing is. With packed
            moments it is asked of the ratio of the bytes to those with float32 moments instead.
        least_ratio: how many times as fast as the best peer it is to be.
        rides_along: gradients are unscaled and clipped, and a bfloat16 copy of the parameters written.
        new_grads: every step finds other gradient tensors, as it does where ``zero_grad()`` lets the old ones go.
    """

    name: str
    count: int
    numel: int
    dtype: torch.dtype
    states: str
    least_of_limit: float | None = None
    least_ratio: float | None = None
    rides_along: bool = False
    new_grads: bool = False

    @property
    def total(self) -> int:
        return self.count * self.numel

    @property
    def moment(self) -> torch.dtype:
        return {"param": self.dtype, "bfloat16": torch.bfloat16, "8bit": torch.uint8}.get(self.states, torch.float32)

    @property
    def is_plain(self) -> bool:
        """Whether peers have it: moments as plain values, nothing beside the formula."""
        return self.states in ("float32", "param") and not self.rides_along

    @property
    def shares_memory(self) -> bool:
        """Whether all contenders work in one memory."""
        return self.numel >= LARGE_NUMEL

    @property
    def is_packed(self) -> bool:
        return self.states in ("bfloat16", "8bit")

    @property
    def bytes_per_element(self) -> float:
        """Parameter and two moments read and written, gradient read; beside it the gradient again, a copy written."""
        beside = self.dtype.itemsize + 2 if self.rides_along else 0
        return 3 * self.dtype.itemsize + 4 * STATE_BYTES[self.moment] + beside


def make_cases(numel: int) -> list[Case]:
    """The cases, the large ones of ``numel`` elements."""
    f32, bf16 = torch.float32, torch.bfloat16
    size = f"{numel // MILLION}M" if numel % MILLION == 0 else str(numel)
    return [
        Case(f"{size} fp32", 1, numel, f32, "float32", 0.95, 1.0),
        Case(f"{size} fp32, bf16 moments", 1, numel, f32, "bfloat16", 0.9),
        Case(f"{size} fp32, 8-bit moments", 1, numel, f32, "8bit"),
        Case(f"{size} bf16, fp32 moments", 1, numel, bf16, "float32", 0.95, 1.0),
        Case(f"{size} bf16, bf16 moments", 1, numel, bf16, "param", 0.95, 1.0),
        Case(f"{size} fp32, unscale, clip, bf16 copy", 1, numel, f32, "float32", None, 1.5, rides_along=True),
        Case("1,000 x 65,536 fp32", 1000, 65536, f32, "float32", 0.9, 1.0),
        Case("10,000 x 1,024 fp32", 10_000, 1024, f32, "float32", None, 3.5),
        Case("10,000 x 1,024 fp32, new gradients", 10_000, 1024, f32, "float32", new_grads=True),
    ]


class SharedMemory:
    """A case's parameters, gradients and two plain moments, of all tensors each, where another process finds them, too.

    Attributes:
        path: of the file that another process maps.
        parts: where each lies in it, and its length, in bytes.
    """

    def __init__(self, case: Case) -> None:
        moments = torch.float32 if case.is_packed else case.moment
        dtypes = (case.dtype, case.dtype, moments, moments)
        sizes = [case.total * dtype.itemsize for dtype in dtypes]
        distances = (size + GAP_BYTES - size % GAP_BYTES for size in sizes)
        self.parts = list(zip(accumulate(distances, initial=0), sizes, strict=False))
        nbytes = sum(self.parts[-1])
        file = os.memfd_create("benchmarks.adam")
        weakref.finalize(self, os.close, file)  # its memory goes with the last tensor
        os.ftruncate(file, nbytes)
        self.path = f"/proc/{os.getpid()}/fd/{file}"
        memory = torch.from_file(self.path, shared=True, size=nbytes, dtype=torch.uint8).zero_()
        parts = [memory[at : at + size] for at, size in self.parts]
        self._values = [part.view(dtype) for part, dtype in zip(parts, dtypes, strict=True)]
        self._streams = [parts[place][: sizes[place] // 4 * 4].view(torch.float32) for place in (0, 2, 3)]
        self.params, self.grads, self.exp_avgs, self.exp_avg_sqs = (part.split(case.numel) for part in self._values)

    @property
    def stream_bytes(self) -> int:
        """What one go of the stream moves."""
        return 2 * sum(part.nbytes for part in self._streams)

    def stream(self) -> None:
        """Read and write everything that a step writes, in place; no number changes."""
        for part in self._streams:
            part.mul_(1)

    def place(self, optimizer: torch.optim.Optimizer) -> None:
        """Have an optimizer keep its moments here."""
        (group,) = optimizer.param_groups
        for param, first, second in zip(group["params"], self.exp_avgs, self.exp_avg_sqs, strict=True):
            optimizer.state[param].update(exp_avg=first.zero_(), exp_avg_sq=second.zero_())


class OwnMemory:
    """A case's parameters and gradients, each where torch puts it, and what the limit's stream goes through."""

    def __init__(self, case: Case) -> None:
        self.params = tuple(torch.zeros(case.numel, dtype=case.dtype) for _ in range(case.count))
        self.grads = tuple(torch.zeros(case.numel, dtype=case.dtype) for _ in range(case.count))
        self._stream = torch.zeros(STREAM_NUMEL)
        self.stream_bytes = 2 * self._stream.nbytes

    def stream(self) -> None:
        """Read and write other memory, in place; no number changes."""
        self._stream.mul_(1)
