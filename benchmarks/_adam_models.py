"""Steps of a model's tensors: GPT-2 small, with float32 and with 8-bit moments, against other libraries."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks import _measure, _peers
from benchmarks._measure import Table

TORCHAO = ("torchao==0.18.0", "torchao")
BITSANDBYTES = ("bitsandbytes==0.50.2", "bitsandbytes")
OURS, OURS_8BIT = "accel-ops", "accel-ops, 8-bit"
LARGE = [(32 * 2**20,)]


def gpt2_small() -> list[tuple[int, ...]]:
    """The shapes of the 148 parameters of GPT-2 small, 124 million elements."""
    width, vocabulary, context, layers = 768, 50257, 1024, 12
    norm = [(width,), (width,)]
    attention = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    feed_forward = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    layer = [*norm, *attention, *norm, *feed_forward]
    return [(vocabulary, width), (context, width), *(layer * layers), *norm]


@dataclasses.dataclass(frozen=True)
class ModelCase:
    """Tensors that the contenders update, each in a process of its own, with new gradients in each step.

    Attributes:
        has_copies: a step also writes bfloat16 copies of the parameters.
    """

    name: str
    shapes: Sequence[tuple[int, ...]]
    contenders: Sequence[str]
    has_copies: bool = False


@dataclasses.dataclass(frozen=True)
class ModelResult:
    """One contender in one case: the seconds of each step and ``zero_grad()``, and the bytes of its state."""

    case: ModelCase
    contender: str
    seconds: list[float]
    state_bytes: int

    @property
    def bytes_per_parameter(self) -> float:
        return self.state_bytes / sum(math.prod(shape) for shape in self.case.shapes)


def start(contender: str) -> _peers.PeerProcess:
    """A process of ``programs/model_steps.py``."""
    program = [_peers.PROGRAMS / "model_steps.py", contender]
    if contender == "deepspeed":
        return _peers.PeerProcess([_peers.deepspeed_python(), *program])
    requirement = {"torchao": TORCHAO, "bitsandbytes": BITSANDBYTES}.get(contender, ("torch", "torch"))
    return _peers.PeerProcess([_peers.peer_python(*requirement), *program], {"PYTHONPATH": str(_measure.ROOT)})


def run_case(case: ModelCase, rounds: int) -> list[ModelResult]:
    """Measure one case."""
    processes = {contender: start(contender) for contender in case.contenders}
    try:
        for process in processes.values():
            process.ask(do="prepare", shapes=case.shapes, has_copies=case.has_copies, threads=torch.get_num_threads())
        turns = {name: partial(_step_s, process) for name, process in processes.items()}
        seconds = _measure.interleave(turns, rounds, case.name, warm_ups=3)
        return [
            ModelResult(case, name, seconds[name], process.ask(do="state_bytes")["bytes"])
            for name, process in processes.items()
        ]
    finally:
        for process in processes.values():
            process.close()


def _step_s(process: _peers.PeerProcess) -> float:
    return float(process.ask(do="step")["seconds"])


def model_cases(peers: Sequence[str]) -> list[ModelCase]:
    """The cases with those contenders that ``peers`` names."""
    torchs = ["torch fused", "torch foreach"] if "torch" in peers else []
    plain = [OURS, *torchs, *(name for name in ("deepspeed",) if name in peers)]
    packed = [OURS, OURS_8BIT, *_packed_peers(peers)]
    model = gpt2_small()
    return [
        ModelCase("GPT-2 small", model, plain),
        ModelCase("GPT-2 small, bfloat16 copies", model, plain, has_copies=True),
        ModelCase("32M, 8-bit moments", LARGE, packed),
        ModelCase("GPT-2 small, 8-bit moments", model, packed),
    ]


def model_table(results: Sequence[ModelResult]) -> Table:
    """One row for each contender of each case."""
    rows = []
    for result in results:
        ours = next(other for other in results if other.case is result.case and is_ours(other))
        rows.append(
            [
                result.case.name,
                result.contender,
                _measure.duration(min(result.seconds)),
                _measure.duration(statistics.median(result.seconds)),
                "" if result is ours else f"{min(result.seconds) / min(ours.seconds):.2f} x",
                f"{result.bytes_per_parameter:.2f}",
            ]
        )
    columns = ("case", "contender", "best", "median", "best / accel-ops", "bytes of state per parameter")
    return Table("step() and zero_grad() with new gradients", columns, rows)


def is_ours(result: ModelResult) -> bool:
    """Whether others are compared with this result: in a case of 8-bit moments, ours with these."""
    return result.contender == (OURS_8BIT if OURS_8BIT in result.case.contenders else OURS)


def _packed_peers(peers: Sequence[str]) -> list[str]:
    return [name for name in ("bitsandbytes", "torchao") if name in peers]
