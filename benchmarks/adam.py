"""CPU Adam against the memory's limit and against peers, in one run.

The limit of a case is the bytes it must move over the bandwidth of ``x.add_(1)`` (8 bytes per
float32 element, in place), measured in the same run with the same threads. All contenders take
turns; a figure is the best of its turns.

    python -m benchmarks.adam [--numel N] [--quick] [--peers torch,deepspeed] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import _measure
from op_builder.ops import CPUAdam

OURS, LIMIT = "accel-ops", "limit"
PEERS = ("torch", "deepspeed")
MILLION = 2**20
QUICK_NUMEL = 16 * MILLION


@dataclasses.dataclass(frozen=True)
class Case:
    """``count`` tensors of ``numel`` elements each, gradients of the parameters' type."""

    name: str
    count: int
    numel: int
    dtype: torch.dtype
    moment: torch.dtype

    @property
    def total(self) -> int:
        return self.count * self.numel

    @property
    def bytes_per_element(self) -> int:
        """Parameter read and written, gradient read, two moments read and written."""
        return 3 * self.dtype.itemsize + 4 * self.moment.itemsize


@dataclasses.dataclass(frozen=True)
class Result:
    """One contender in one case; ``limit_s`` is the time that moving the bytes alone would take."""

    case: Case
    contender: str
    seconds: list[float]
    limit_s: float

    @property
    def best_s(self) -> float:
        return min(self.seconds)


def make_cases(numel: int) -> list[Case]:
    """The cases, the large ones of ``numel`` elements."""
    f32, bf16 = torch.float32, torch.bfloat16
    size = f"{numel // MILLION}M" if numel % MILLION == 0 else str(numel)
    return [
        Case(f"{size} fp32", 1, numel, f32, f32),
        Case(f"{size} bf16, fp32 moments", 1, numel, bf16, f32),
        Case(f"{size} bf16, bf16 moments", 1, numel, bf16, bf16),
        Case("1,000 x 65,536 fp32", 1000, 65536, f32, f32),
        Case("10,000 x 1,024 fp32", 10_000, 1024, f32, f32),
    ]


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """``work`` as a function that returns the seconds it took."""

    def run() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return run


def local_contenders(case: Case, peers: list[str]) -> dict[str, Callable[[], float]]:
    """Ours, torch's and the streaming limit, on the same tensors."""
    params = [torch.nn.Parameter(torch.zeros(case.numel, dtype=case.dtype)) for _ in range(case.count)]
    for param in params:
        param.grad = torch.full_like(param, 1e-3)
    ours = CPUAdam(params, weight_decay=0.01, fp32_optimizer_states=case.moment == torch.float32)
    ours.step()
    stream = torch.zeros(min(case.total, 256 * MILLION))
    contenders = {LIMIT: timed(lambda: stream.add_(1)), OURS: timed(ours.step)}
    if "torch" in peers and case.moment == case.dtype:  # its moments have the parameter's type
        theirs = torch.optim.AdamW(params, weight_decay=0.01, fused=True)
        theirs.state.update({param: {**state, "step": state["step"].clone()} for param, state in ours.state.items()})
        contenders["torch"] = timed(theirs.step)
    return contenders


def run_case(case: Case, peers: list[str], rounds: int, peer: _measure.PeerProcess | None) -> list[Result]:
    """Measure one case."""
    with _measure.make_progress() as progress:
        task = progress.add_task(f"{case.name}: preparing", total=None)
        contenders = local_contenders(case, peers)
        if peer is not None:
            peer.ask(
                do="prepare",
                count=case.count,
                numel=case.numel,
                dtype=str(case.dtype).removeprefix("torch."),
                fp32_moments=case.moment == torch.float32,
                threads=torch.get_num_threads(),
            )
            contenders["deepspeed"] = lambda: float(peer.ask(do="step")["seconds"])
        progress.update(task, description=case.name, total=(rounds + 1) * len(contenders))
        seconds = _measure.interleave(contenders, rounds, lambda: progress.advance(task))
    stream_s_per_byte = min(seconds.pop(LIMIT)) / (8 * min(case.total, 256 * MILLION))
    limit_s = stream_s_per_byte * case.total * case.bytes_per_element
    return [Result(case, contender, taken, limit_s) for contender, taken in seconds.items()]


COLUMNS = ("case", "contender", "best ms", "median ms", "limit ms", "of the limit", "accel-ops is faster by")


def rows_of(results: list[Result]) -> list[list[str]]:
    """The table's rows, a case after the other."""
    ours = {result.case: result.best_s for result in results if result.contender == OURS}
    return [
        [
            result.case.name,
            result.contender,
            f"{result.best_s * 1e3:.1f}",
            f"{statistics.median(result.seconds) * 1e3:.1f}",
            f"{result.limit_s * 1e3:.1f}",
            f"{result.limit_s / result.best_s:.2f}",
            "" if result.contender == OURS else f"{result.best_s / ours[result.case]:.2f} x",
        ]
        for result in results
    ]


def as_json(machine: _measure.Machine, results: list[Result]) -> str:
    """All figures, for programs."""
    entries = [
        {
            "case": result.case.name,
            "contender": result.contender,
            "seconds": result.seconds,
            "best_s": result.best_s,
            "limit_s": result.limit_s,
            "of_the_limit": result.limit_s / result.best_s,
        }
        for result in results
    ]
    return json.dumps({"machine": dataclasses.asdict(machine), "results": entries}, indent=2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adam", description=__doc__.partition("\n")[0])
    parser.add_argument("--numel", type=int, help="elements of the large cases (default 256M = 2**28)")
    parser.add_argument("--quick", action="store_true", help="16M elements and fewer turns")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--peers", default=",".join(PEERS), help="of torch, deepspeed; empty for none")
    parser.add_argument("--deepspeed-python", help="interpreter that has deepspeed (default: this one, or a made one)")
    parser.add_argument("--threads", type=int, help="torch threads of every contender")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    arguments.peers = [name for name in arguments.peers.split(",") if name]
    for name in arguments.peers:
        if name not in PEERS:
            parser.error(f"unknown peer {name!r}; choose from {', '.join(PEERS)}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    numel = arguments.numel or (QUICK_NUMEL if arguments.quick else 256 * MILLION)
    rounds = arguments.rounds or (5 if arguments.quick else 10)
    peer = None
    if "deepspeed" in arguments.peers:
        python = _measure.peer_python(*_measure.DEEPSPEED, arguments.deepspeed_python)
        peer = _measure.PeerProcess(python, Path(__file__).with_name("_deepspeed_adam.py"))
    machine = _measure.describe_machine()
    results: list[Result] = []
    for case in make_cases(numel):
        results += run_case(case, arguments.peers, rounds, peer)
    if peer is not None:
        peer.close()
    if arguments.json:
        print(as_json(machine, results))
    else:
        _measure.console.print(_measure.table("CPU Adam, one step", COLUMNS, rows_of(results)))
        _measure.console.print(str(machine))
    if arguments.write:
        _measure.write_results("adam", f"{machine}\n\n{_measure.markdown(COLUMNS, rows_of(results))}")


if __name__ == "__main__":
    main()
