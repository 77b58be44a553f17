"""What the device layer adds to torch's own calls, in time.

Each call is timed next to the torch call that it stands for, in turns in one process;
the figure is the median difference of many rounds.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from accelerator import get_accelerator, set_accelerator
from accelerator.abstract_accelerator import Accelerator
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.cuda_accelerator import CUDA_Accelerator
from benchmarks import _measure
from benchmarks._measure import Table, verdict

Call = Callable[[], object]

SECOND_CALL_LIMIT_NS = 1000.0
ADDED_LIMIT_NS = 300.0
CALLS = 2000


def call_ns(function: Call) -> float:
    """Nanoseconds of one call, with the loop around it."""
    repeated = itertools.repeat(None, CALLS)
    started = time.perf_counter_ns()
    for _ in repeated:
        function()
    return (time.perf_counter_ns() - started) / CALLS


def delegated_calls(accelerator: Accelerator) -> dict[str, tuple[Call, Call]]:
    """By name, calls of the CPU accelerator and the torch calls that they stand for, each as a program writes it."""
    tensor = torch.zeros(4)
    return {
        "get_rng_state()": (lambda: accelerator.get_rng_state(), lambda: torch.get_rng_state()),
        "initial_seed()": (lambda: accelerator.initial_seed(), lambda: torch.initial_seed()),
        "default_generator(0)": (lambda: accelerator.default_generator(0), lambda: torch.default_generator),
        "FloatTensor([1.0])": (
            lambda: accelerator.FloatTensor([1.0]),
            lambda: torch.tensor([1.0], dtype=torch.float32, device="cpu"),
        ),
        "on_accelerator(tensor)": (lambda: accelerator.on_accelerator(tensor), lambda: tensor.device.type == "cpu"),
        "device()": (lambda: accelerator.device(), lambda: torch.device("cpu")),
        "synchronize()": (lambda: accelerator.synchronize(), lambda: torch.cpu.synchronize()),
    }


def cuda_calls() -> dict[str, tuple[Call, Call]]:
    """The same for the CUDA accelerator; without a CUDA device only calls that do not need one."""
    cuda = CUDA_Accelerator()
    calls: dict[str, tuple[Call, Call]] = {
        "cuda: memory_allocated()": (lambda: cuda.memory_allocated(), lambda: torch.cuda.memory_allocated()),
        "cuda: device_count()": (lambda: cuda.device_count(), lambda: torch.cuda.device_count()),
    }
    if torch.cuda.is_available():
        calls |= {
            "cuda: current_device()": (lambda: cuda.current_device(), lambda: torch.cuda.current_device()),
            "cuda: current_stream()": (lambda: cuda.current_stream(), lambda: torch.cuda.current_stream()),
            "cuda: set_device(0)": (lambda: cuda.set_device(0), lambda: torch.cuda.set_device(0)),
            "cuda: synchronize()": (lambda: cuda.synchronize(), lambda: torch.cuda.synchronize()),
        }
    return calls


COLUMNS = ("call", "verdict", "added", "limit", "torch", "accel-ops")


def row(name: str, ours_ns: list[float], torch_ns: list[float]) -> list[str]:
    """The table's row of a delegated call."""
    added = statistics.median(ours - theirs for ours, theirs in zip(ours_ns, torch_ns, strict=True))
    texts = [f"{ns:,.0f} ns" for ns in (added, statistics.median(torch_ns), statistics.median(ours_ns))]
    return [name, verdict(added <= ADDED_LIMIT_NS), texts[0], f"<= {ADDED_LIMIT_NS:,.0f} ns", *texts[1:]]


def main() -> None:
    parser = _measure.make_parser("accelerator", __doc__, "11 rounds instead of 101")
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    set_accelerator(CPU_Accelerator())  # the same device on every machine
    calls = {**delegated_calls(get_accelerator()), **cuda_calls()}
    contenders: dict[str, Callable[[], float]] = {"get_accelerator()": partial(call_ns, get_accelerator)}
    for name, (ours, theirs) in calls.items():
        contenders |= {name: partial(call_ns, ours), f"{name}, torch": partial(call_ns, theirs)}
    samples = _measure.interleave(contenders, 11 if arguments.quick else 101, "calls")
    second_ns = statistics.median(samples["get_accelerator()"])
    second = ["get_accelerator() the second time", verdict(second_ns <= SECOND_CALL_LIMIT_NS)]
    second += ["", f"<= {SECOND_CALL_LIMIT_NS:,.0f} ns", "", f"{second_ns:,.0f} ns"]
    rows = [second, *(row(name, samples[name], samples[f"{name}, torch"]) for name in calls)]
    _measure.report("accelerator", arguments, machine, [Table("The device layer", COLUMNS, rows)], samples)


if __name__ == "__main__":
    main()
