"""CPU Adam against the memory's limit and against peers, in one run.

The limit of a case is the bytes it must move over the bandwidth of ``x.add_(1)`` (8 bytes per
float32 element, in place), measured in the same run with the same threads on a tensor that fits no
cache. All contenders take turns; a figure is the best of its turns.

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
APART = "accel-ops, apart"
PEERS = ("torch", "deepspeed")
MILLION = 2**20
QUICK_NUMEL = 16 * MILLION
STREAM_NUMEL = 256 * MILLION
STATE_BYTES = {torch.float32: 4.0, torch.bfloat16: 2.0, torch.uint8: 1 + 4 / 256}


@dataclasses.dataclass(frozen=True)
class Case:
    """``count`` tensors of ``numel`` elements each, gradients of the parameters' type.

    Attributes:
        states: ``CPUAdam``'s way of keeping the moments.
        least_of_limit: the share of the limit that is asked for, None where nothing is.
        least_ratio: how many times as fast as the best peer it is to be.
        rides_along: gradients are unscaled and clipped, and a bfloat16 copy of the parameters written.
    """

    name: str
    count: int
    numel: int
    dtype: torch.dtype
    states: str
    least_of_limit: float | None = None
    least_ratio: float | None = None
    rides_along: bool = False

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
    def bytes_per_element(self) -> float:
        """Parameter and two moments read and written, gradient read; beside it the gradient again, a copy written."""
        beside = self.dtype.itemsize + 2 if self.rides_along else 0
        return 3 * self.dtype.itemsize + 4 * STATE_BYTES[self.moment] + beside


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
        Case(f"{size} fp32", 1, numel, f32, "float32", 0.95, 1.0),
        Case(f"{size} fp32, bf16 moments", 1, numel, f32, "bfloat16", 0.9),
        Case(f"{size} fp32, 8-bit moments", 1, numel, f32, "8bit", 0.9),
        Case(f"{size} bf16, fp32 moments", 1, numel, bf16, "float32", 0.95, 1.0),
        Case(f"{size} bf16, bf16 moments", 1, numel, bf16, "param", None, 1.0),
        Case(f"{size} fp32, unscale, clip, bf16 copy", 1, numel, f32, "float32", None, 1.5, rides_along=True),
        Case("1,000 x 65,536 fp32", 1000, 65536, f32, "float32", 0.9, 1.0),
        Case("10,000 x 1,024 fp32", 10_000, 1024, f32, "float32", None, 4.0),
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
    ours = CPUAdam(params, weight_decay=0.01, states=case.states)
    ours.step()
    ours.step()  # in the second it learns that the gradients stay the same tensors
    stream = torch.zeros(STREAM_NUMEL if case.total >= QUICK_NUMEL else STREAM_NUMEL // 4)
    contenders = {LIMIT: timed(lambda: stream.add_(1))}
    if case.rides_along:
        copies = {param: torch.zeros_like(param, dtype=torch.bfloat16, requires_grad=False) for param in params}
        contenders[APART] = timed(lambda: step_apart(ours, params, copies))
        fused = CPUAdam(params, weight_decay=0.01, max_grad_norm=1.0)
        fused.state.update(ours.state)
        fused.write_copies(copies)
        contenders[OURS] = timed(lambda: fused.step(grad_scale=1.0))
    else:
        contenders[OURS] = timed(ours.step)
    if "torch" in peers and case.moment == case.dtype:  # its moments have the parameter's type
        theirs = torch.optim.AdamW(params, weight_decay=0.01, fused=True)
        theirs.state.update({param: {**state, "step": state["step"].clone()} for param, state in ours.state.items()})
        if case.rides_along:
            contenders["torch"] = timed(lambda: step_apart(theirs, params, copies))
        else:
            contenders["torch"] = timed(theirs.step)
    return contenders


def step_apart(
    optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], copies: dict[torch.Tensor, torch.Tensor]
) -> None:
    """Unscaling with a check for infinity, clipping, the step and the copy, each in a pass of its own."""
    grads = [param.grad for param in params if param.grad is not None]
    found_inf, inverse_scale = torch.zeros(()), torch.ones(())
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inverse_scale)
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()
    for param, copy in copies.items():
        copy.copy_(param.detach())


def run_case(case: Case, peers: list[str], rounds: int, peer: _measure.PeerProcess | None) -> list[Result]:
    """Measure one case."""
    with _measure.make_progress() as progress:
        task = progress.add_task(f"{case.name}: preparing", total=None)
        contenders = local_contenders(case, peers)
        if peer is not None and case.is_plain:
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
    stream_numel = STREAM_NUMEL if case.total >= QUICK_NUMEL else STREAM_NUMEL // 4
    stream_s_per_byte = min(seconds.pop(LIMIT)) / (8 * stream_numel)
    limit_s = stream_s_per_byte * case.total * case.bytes_per_element
    return [Result(case, contender, taken, limit_s) for contender, taken in seconds.items()]


COLUMNS = ("case", "contender", "best ms", "median ms", "limit ms", "of the limit", "accel-ops is faster by", "asked")


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
            asked_of(result, results),
        ]
        for result in results
    ]


def asked_of(result: Result, results: list[Result]) -> str:
    """What is asked of our figure, and whether it is met."""
    case = result.case
    if result.contender != OURS:
        return ""
    words = []
    if case.least_of_limit is not None:
        if case.states in ("bfloat16", "8bit"):
            plain = next(r for r in results if r.contender == OURS and r.case.states == "float32" and r.case.is_plain)
            share = plain.best_s / result.best_s / (plain.case.bytes_per_element / case.bytes_per_element)
            what = "of the bytes' ratio to fp32"
        else:
            share, what = result.limit_s / result.best_s, "of the limit"
        words.append(f"{verdict(share >= case.least_of_limit)}: {share:.2f} {what} (>= {case.least_of_limit})")
    others = [other.best_s for other in results if other.case == case and other.contender != OURS]
    if case.least_ratio is not None and others:
        ratio = min(others) / result.best_s
        words.append(f"{verdict(ratio >= case.least_ratio)}: {ratio:.2f} x the next best (>= {case.least_ratio})")
    return "; ".join(words)


def verdict(is_met: bool) -> str:
    return "ok" if is_met else "miss"


def temporary_bytes(numel: int) -> int:
    """How much the process grows at most while a step of ``numel`` elements in 8-bit moments runs, clipping too."""
    param = torch.nn.Parameter(torch.zeros(numel))
    param.grad = torch.full_like(param, 1e-3)
    optimizer = CPUAdam([param], states="8bit", max_grad_norm=1.0)
    optimizer.step()
    optimizer.step()
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident size
    before = resident_bytes("VmRSS")
    optimizer.step()
    return max(0, resident_bytes("VmHWM") - before)


def resident_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


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
    parser.add_argument(
        "--write", action="store_true", help="put the table into benchmarks/RESULTS.md, a picture into docs"
    )
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
    grown = temporary_bytes(numel // 4)
    memory = f"Temporaries: a step of {numel // 4 // MILLION}M parameters grew the process by {grown >> 10} KiB"
    memory += f", {torch.get_num_threads()} threads (at most 1 MiB each is asked for)."
    if arguments.json:
        print(as_json(machine, results))
    else:
        _measure.console.print(_measure.table("CPU Adam, one step", COLUMNS, rows_of(results)))
        _measure.console.print(f"{memory}\n{machine}")
    if arguments.write:
        _measure.write_results("adam", f"{machine}\n\n{_measure.markdown(COLUMNS, rows_of(results))}\n{memory}\n")
        from benchmarks import _roofline

        _roofline.draw([result for result in results if result.contender != APART and result.case.is_plain])


if __name__ == "__main__":
    main()
