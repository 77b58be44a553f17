"""Ops with SYCL kernels on the SYCL CPU device, against torch and the CPU ops.

A load is a new process with torch imported before the clock starts; it ends when the op has
worked once, with its kernel compiled. The contenders of a case alternate in one process;
a figure is the best of the turns. For a function that torch does not have, the peer is what
a user writes with torch instead, eagerly.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from benchmarks import _measure
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import Table, duration, verdict
from benchmarks._peers import PROGRAMS
from benchmarks._processes import run_program
from op_builder import cpu, ops, xpu
from op_builder.ops.optim.fused_op import FusedOp

LEAST_RATIO = 0.8
COLD_LIMIT_S = 8.0
WARM_LIMIT_S = 1.0

Work = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """The same work by our SYCL op and by a peer.

    Attributes:
        peer: the name of the peer.
        is_required: whether SYCL must reach LEAST_RATIO of the peer's speed.
    """

    name: str
    peer: str
    sycl: Work
    other: Work
    is_required: bool = True


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The best seconds of a case."""

    case: str
    peer: str
    is_required: bool
    sycl_s: float
    peer_s: float

    @property
    def ratio(self) -> float:
        return self.peer_s / self.sycl_s


def optimizer_cases(numel: int) -> Iterator[Case]:
    """The fused optimizers against the CPU ops; an iterator, because each case needs gigabytes."""
    numbers = (1e-3, 0.9, 0.999, 1e-8, 3, 1, True, 0.01)

    def adam(module: FusedOp, count: int, each: int, dtype: torch.dtype) -> Work:
        lists = [[torch.full((each,), 1e-3, dtype=kind) for _ in range(count)] for kind in (dtype, dtype)]
        states = [[torch.full((each,), 1e-3) for _ in range(count)] for _ in range(2)]
        return partial(module.multi_tensor_adam, 65536, None, [*lists, *states], *numbers)

    def lion(module: FusedOp) -> Work:
        lists = [[torch.full((numel,), 1e-3)] for _ in range(3)]
        return partial(module.multi_tensor_lion, 65536, None, lists, 1e-4, 0.9, 0.99, 1, 0.1)

    ours, theirs = xpu.FusedAdamBuilder().load(), cpu.FusedAdamBuilder().load()
    for title, shape in (
        (f"FusedAdam, {numel >> 20}M fp32", (1, numel, torch.float32)),
        (f"FusedAdam, {numel >> 20}M bf16", (1, numel, torch.bfloat16)),
        (f"FusedAdam, 1,000 x {numel // 1000:,} fp32", (1000, numel // 1000, torch.float32)),
        ("FusedAdam, 10,000 x 1,024 fp32", (10_000, 1024, torch.float32)),
    ):
        yield Case(title, "the CPU op", adam(ours, *shape), adam(theirs, *shape), is_required=shape[0] != 10_000)
    lions = (lion(builder().load()) for builder in (xpu.FusedLionBuilder, cpu.FusedLionBuilder))
    yield Case(f"FusedLion, {numel >> 20}M fp32", "the CPU op", *lions)


def torch_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize blocks of 256 to int8 codes, written with torch."""
    blocks = x.view(-1, 256)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    return (blocks / scales).round().clamp(-127, 127).to(torch.int8), scales


def torch_packbits(x: torch.Tensor) -> torch.Tensor:
    """Pack bytes of zeros and ones into bits, written with torch."""
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)
    return (x.view(-1, 8) * weights).sum(1, dtype=torch.uint8)


def function_cases(numel: int) -> Iterator[Case]:
    """The functions on float32 against torch."""
    size, norm = f"{numel >> 20}M", torch.nn.functional.rms_norm
    x, weight = torch.randn(numel), torch.ones(4096)
    rows, bits = x.view(-1, 4096), (x > 0).to(torch.uint8)
    codes, scales = ops.quantize_blocks(x)
    for name, peer, sycl, other in (
        (
            "rms_norm, rows of 4,096",
            "torch rms_norm",
            partial(ops.rms_norm, rows, weight),
            partial(norm, rows, (4096,), weight, 1e-6),
        ),
        ("quantize_blocks, 8 bits", "torch, five passes", partial(ops.quantize_blocks, x), partial(torch_quantize, x)),
        (
            "dequantize_blocks, 8 bits",
            "torch mul",
            partial(ops.dequantize_blocks, codes, scales, x.shape),
            partial(torch.mul, codes.view(-1, 256), scales[:, None]),
        ),
        ("packbits", "torch mul, sum", partial(ops.packbits, bits), partial(torch_packbits, bits)),
    ):
        yield Case(f"{name}, {size}", peer, sycl, other)


def run_case(case: Case, rounds: int) -> Outcome:
    contenders = {"sycl": partial(_measure.seconds_of, case.sycl), "peer": partial(_measure.seconds_of, case.other)}
    seconds = _measure.interleave(contenders, rounds, case.name)
    return Outcome(case.name, case.peer, case.is_required, min(seconds["sycl"]), min(seconds["peer"]))


def measure_loads(cold: int, warm: int) -> list[Figure]:
    """Loads with an empty cache, and with a cache that has the op and its kernel."""

    def load(cache: str) -> dict[str, float]:
        return run_program(PROGRAMS / "load_sycl.py", ACCEL_CACHE_DIR=cache)

    loads: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(cold):
        with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as cache:
            loads["cold"].append(load(cache))
            loads["warm"] += [load(cache) for _ in range(warm)]
    figures = []
    for name, limit_s in (("cold", COLD_LIMIT_S), ("warm", WARM_LIMIT_S)):
        both = [times["load_s"] + times["first_update_s"] for times in loads[name]]
        figures.append(Figure(f"{name} load() and first update of FusedAdam", both, limit_s))
        figures.append(Figure(f"{name} load() alone", [times["load_s"] for times in loads[name]]))
    return figures


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """One row for each case."""
    rows = [
        [
            one.case,
            verdict(one.ratio >= LEAST_RATIO) if one.is_required else "",
            duration(one.sycl_s),
            f">= {LEAST_RATIO} x" if one.is_required else "",
            duration(one.peer_s),
            f"{one.ratio:.2f} x",
            one.peer,
        ]
        for one in outcomes
    ]
    columns = ("case", "verdict", "accel-ops, SYCL", "limit", "peer", "peer / SYCL", "which peer")
    return Table("Ops with SYCL kernels", columns, rows)


def main() -> None:
    arguments = _measure.make_parser("sycl", __doc__, "an eighth of the elements, one cold load").parse_args()
    machine = _measure.describe_machine()
    loads = measure_loads(1 if arguments.quick else 3, 3)
    numel, rounds = (2**23, 5) if arguments.quick else (2**26, 15)
    cases = itertools.chain(optimizer_cases(numel), function_cases(numel // 4))
    outcomes = [run_case(case, rounds) for case in cases]
    tables = [figure_table("Loading", loads), outcome_table(outcomes)]
    _measure.report("sycl", arguments, machine, tables, {"loads": loads, "best": outcomes})


if __name__ == "__main__":
    main()
