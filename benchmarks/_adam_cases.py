"""The cases of benchmarks.adam, and the memory that a case's contenders work in."""

from __future__ import annotations

import dataclasses
import os
import weakref
from itertools import accumulate

import torch

MILLION = 2**20
STREAM_NUMEL = 64 * MILLION
LARGE_NUMEL = 65536  # such tensors fill their pages
# Large allocations are a page apart from each other. Without it, arrays of 2^n bytes have addresses that differ by
# 2^n, which Zen 2 confuses: 256M elements in bfloat16 took 175 ms instead of 110 to 130.
GAP_BYTES = 4096
STATE_BYTES = {torch.float32: 4.0, torch.bfloat16: 2.0, torch.uint8: 1 + 1 / 256}


@dataclasses.dataclass(frozen=True)
class Case:
    """``count`` tensors of ``numel`` elements each, with gradients of the parameters' dtype.

    Attributes:
        states: ``CPUAdam``'s storage of the moments.
        least_of_limit: the required share of the limit; None for no requirement. With packed moments it is a
            share of the ratio of bytes to those with float32 moments.
        least_ratio: the required ratio of the best peer's time to ours.
        has_extras: gradients are unscaled and clipped, and a bfloat16 copy of the parameters is written.
        new_grads: every step has new gradient tensors, as after ``zero_grad()``.
    """

    name: str
    count: int
    numel: int
    dtype: torch.dtype
    states: str
    least_of_limit: float | None = None
    least_ratio: float | None = None
    has_extras: bool = False
    new_grads: bool = False

    @property
    def total(self) -> int:
        return self.count * self.numel

    @property
    def moment(self) -> torch.dtype:
        return {"param": self.dtype, "bfloat16": torch.bfloat16, "8bit": torch.uint8}.get(self.states, torch.float32)

    @property
    def is_packed(self) -> bool:
        return self.states in ("bfloat16", "8bit")

    @property
    def is_plain(self) -> bool:
        """Whether peers can do the same: unpacked moments, no extras."""
        return not self.is_packed and not self.has_extras

    @property
    def shares_memory(self) -> bool:
        """Whether all contenders work in the same memory."""
        return self.numel >= LARGE_NUMEL

    @property
    def bytes_per_element(self) -> float:
        """Parameter and two moments read and written, gradient read; the extras read it again and write a copy."""
        extras = self.dtype.itemsize + 2 if self.has_extras else 0
        return 3 * self.dtype.itemsize + 4 * STATE_BYTES[self.moment] + extras


def make_cases(numel: int) -> list[Case]:
    """The cases, the large ones with ``numel`` elements."""
    f32, bf16 = torch.float32, torch.bfloat16
    size = f"{numel // MILLION}M" if numel % MILLION == 0 else str(numel)
    return [
        Case(f"{size} fp32", 1, numel, f32, "float32", 0.95, 1.0),
        Case(f"{size} fp32, bf16 moments", 1, numel, f32, "bfloat16", 0.9),
        Case(f"{size} fp32, 8-bit moments", 1, numel, f32, "8bit"),
        Case(f"{size} bf16, fp32 moments", 1, numel, bf16, "float32", 0.95, 1.0),
        Case(f"{size} bf16, bf16 moments", 1, numel, bf16, "param", 0.95, 1.0),
        Case(f"{size} fp32, unscale, clip, bf16 copy", 1, numel, f32, "float32", None, 1.5, has_extras=True),
        Case("1,000 x 65,536 fp32", 1000, 65536, f32, "float32", 0.9, 1.0),
        Case("10,000 x 1,024 fp32", 10_000, 1024, f32, "float32", None, 3.5),
        Case("10,000 x 1,024 fp32, new gradients", 10_000, 1024, f32, "float32", new_grads=True),
    ]


class SharedMemory:
    """A case's parameters, gradients and two unpacked moments, in a file that another process can map.

    Attributes:
        path: the file.
        parts: the offset and the size of each of the four in it, in bytes.
    """

    def __init__(self, case: Case) -> None:
        moments = torch.float32 if case.is_packed else case.moment
        dtypes = (case.dtype, case.dtype, moments, moments)
        sizes = [case.total * dtype.itemsize for dtype in dtypes]
        distances = (size + GAP_BYTES - size % GAP_BYTES for size in sizes)
        self.parts = list(zip(accumulate(distances, initial=0), sizes, strict=False))
        nbytes = sum(self.parts[-1])
        file = os.memfd_create("benchmarks.adam")
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, nbytes)
        self.path = f"/proc/{os.getpid()}/fd/{file}"
        memory = torch.from_file(self.path, shared=True, size=nbytes, dtype=torch.uint8).zero_()
        parts = [memory[begin : begin + size] for begin, size in self.parts]
        self._streams = [parts[index][: sizes[index] // 4 * 4].view(torch.float32) for index in (0, 2, 3)]
        self.params, self.grads, self.exp_avgs, self.exp_avg_sqs = (
            part.view(dtype).split(case.numel) for part, dtype in zip(parts, dtypes, strict=True)
        )

    @property
    def stream_bytes(self) -> int:
        """Bytes that ``stream()`` reads and writes."""
        return 2 * sum(part.nbytes for part in self._streams)

    def stream(self) -> None:
        """Read and write in place everything that a step writes, without changing it."""
        for part in self._streams:
            part.mul_(1)

    def place(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer keep its moments here."""
        (group,) = optimizer.param_groups
        for param, first, second in zip(group["params"], self.exp_avgs, self.exp_avg_sqs, strict=True):
            optimizer.state[param].update(exp_avg=first.zero_(), exp_avg_sq=second.zero_())


class OwnMemory:
    """A case's parameters and gradients as torch allocates them, and other memory for the limit's stream."""

    def __init__(self, case: Case) -> None:
        self.params = tuple(torch.zeros(case.numel, dtype=case.dtype) for _ in range(case.count))
        self.grads = tuple(torch.zeros(case.numel, dtype=case.dtype) for _ in range(case.count))
        self._stream = torch.zeros(STREAM_NUMEL)
        self.stream_bytes = 2 * self._stream.nbytes

    def stream(self) -> None:
        """Read and write that other memory in place, without changing it."""
        self._stream.mul_(1)
