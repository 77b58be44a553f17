"""CPU Adam against the memory's limit and against peers, in one run.

The limit of a case is the bytes it must move over the bandwidth of ``x.mul_(1)`` (8 bytes per
float32 element, in place), measured in the same run with the same threads: on all that the step of a
large tensor writes, or on 256 MiB, so choose --numel that fits no cache. All contenders take turns; a
figure is the best of its turns.

They take them in the same memory, the peer in another process and the limit's stream included: where
machines are shared, pages of one process differ in speed by half, and the same step takes that much
longer in other memory. Only small tensors and packed moments lie where each contender puts them.

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

from benchmarks import _measure, _temporaries
from benchmarks._adam_cases import MILLION, Case, OwnMemory, SharedMemory, make_cases
from op_builder.ops import CPUAdam

OURS, LIMIT = "accel-ops", "limit"
APART = "accel-ops, apart"
PLAIN = "accel-ops, fp32 moments"
PEERS = ("torch", "deepspeed")
QUICK_NUMEL = 16 * MILLION


@dataclasses.dataclass(frozen=True)
class Result:
    """One contender in one case; ``limit_s`` is the time that moving its bytes alone would take."""

    case: Case
    contender: str
    seconds: list[float]
    limit_s: float

    @property
    def best_s(self) -> float:
        return min(self.seconds)


def timed(work: Callable[[], object], before: Callable[[], object] | None = None) -> Callable[[], float]:
    """``work`` as a function that returns the seconds it took, without those of ``before``."""

    def run() -> float:
        if before is not None:
            before()
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return run


def local_contenders(case: Case, memory: SharedMemory | OwnMemory, peers: list[str]) -> dict[str, Callable[[], float]]:
    """Ours, with packed moments also ours with plain ones, torch's, and the streaming limit, on the same tensors."""
    params = [torch.nn.Parameter(param) for param in memory.params]
    for param, grad in zip(params, memory.grads, strict=True):
        param.grad = grad.fill_(1e-3)

    def make_grads() -> None:
        for param in params:
            param.grad = torch.full_like(param, 1e-3)

    before = make_grads if case.new_grads else None
    ours = CPUAdam(params, weight_decay=0.01, states=case.states)
    warm_up(ours, memory)
    contenders = {LIMIT: timed(memory.stream)}
    if case.rides_along:
        copies: dict[torch.Tensor, torch.Tensor] = {
            param: torch.zeros_like(param, dtype=torch.bfloat16, requires_grad=False) for param in params
        }
        contenders[APART] = timed(lambda: step_apart(ours, params, copies))
        fused = CPUAdam(params, weight_decay=0.01, max_grad_norm=1.0)
        fused.state.update(ours.state)
        fused.write_copies(copies)
        contenders[OURS] = timed(lambda: fused.step(grad_scale=1.0))
    else:
        contenders[OURS] = timed(ours.step, before)
    if case.is_packed:  # beside it, because the memory's speed is not the same in every case
        with_plain = CPUAdam(params, weight_decay=0.01, states="float32")
        warm_up(with_plain, memory)
        contenders[PLAIN] = timed(with_plain.step)
    if "torch" in peers and case.moment == case.dtype:  # its moments have the parameter's type
        theirs = torch.optim.AdamW(params, weight_decay=0.01, fused=True)
        theirs.state.update({param: {**state, "step": state["step"].clone()} for param, state in ours.state.items()})
        if case.rides_along:
            contenders["torch"] = timed(lambda: step_apart(theirs, params, copies))
        else:
            contenders["torch"] = timed(theirs.step, before)
    return contenders


def warm_up(optimizer: CPUAdam, memory: SharedMemory | OwnMemory) -> None:
    optimizer.step()
    if isinstance(memory, SharedMemory) and optimizer.param_groups[0]["states"] in ("float32", "param"):
        memory.place(optimizer)
        optimizer.step()
    optimizer.step()  # now it learns that the gradients stay the same tensors


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
        memory = SharedMemory(case) if case.shares_memory else OwnMemory(case)
        contenders = local_contenders(case, memory, peers)
        if peer is not None and case.is_plain:
            peer.ask(
                do="prepare",
                count=case.count,
                numel=case.numel,
                dtype=str(case.dtype).removeprefix("torch."),
                fp32_moments=case.moment == torch.float32,
                threads=torch.get_num_threads(),
                new_grads=case.new_grads,
                memory=memory.path if isinstance(memory, SharedMemory) else None,
                parts=memory.parts if isinstance(memory, SharedMemory) else None,
            )
            contenders["deepspeed"] = lambda: float(peer.ask(do="step")["seconds"])
        progress.update(task, description=case.name, total=(rounds + 1) * len(contenders))
        seconds = _measure.interleave(contenders, rounds, lambda: progress.advance(task))
    limit_s = min(seconds.pop(LIMIT)) / memory.stream_bytes * case.total
    return [
        Result(case, contender, taken, limit_s * (plain(case) if contender == PLAIN else case).bytes_per_element)
        for contender, taken in seconds.items()
    ]


def plain(case: Case) -> Case:
    """The same with float32 moments."""
    return dataclasses.replace(case, states="float32")


COLUMNS = ("case", "contender", "best ms", "median", "limit", "of limit", "ours faster")
ASKED_COLUMNS = ("case", "asked of accel-ops", "verdict", "figure", "at least")


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


def asked_rows(results: list[Result]) -> list[list[str]]:
    """What is asked of our figures and whether it is met, a verdict a row."""
    rows = []
    for result in results:
        if result.contender != OURS:
            continue
        case = result.case
        others = {other.contender: other.best_s for other in results if other.case == case and other is not result}
        if case.least_of_limit is not None:
            if case.is_packed:
                what = "share of the bytes' ratio to fp32 moments"
                share = others[PLAIN] / result.best_s / (plain(case).bytes_per_element / case.bytes_per_element)
            else:
                what, share = "share of the limit", result.limit_s / result.best_s
            rows.append(asked_row(case, what, share, case.least_of_limit))
        if case.least_ratio is not None and others:
            best = min(others, key=others.__getitem__)
            rows.append(asked_row(case, f"times as fast as {best}", others[best] / result.best_s, case.least_ratio))
    return rows


def asked_row(case: Case, what: str, figure: float, least: float) -> list[str]:
    return [case.name, what, verdict(figure >= least), f"{figure:.2f}", f"{least:g}"]


def is_drawn(case: Case) -> bool:
    """Whether the roofline picture has it."""
    return case.is_plain and not case.new_grads


def verdict(is_met: bool) -> str:
    return "ok" if is_met else "miss"


def temporaries_text(threads: int) -> str:
    """How far a step makes the process grow, each case's verdict on a line."""
    limit_kib = threads << 10
    kib = _temporaries.measure(threads)
    if kib is None:
        return "Temporaries of a step: not measured."
    lines = [f"Temporaries of a step with {threads} threads, at most {limit_kib} KiB asked for:", ""]
    for case, grown in kib.items():
        found = "not measured" if grown is None else f"{verdict(grown <= limit_kib)}, {grown} KiB"
        lines.append(f"- {case}: {found}")
    return "\n".join(lines)


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
    parser.add_argument("--deepspeed-python", help="interpreter that has deepspeed (default: this one, or a made one)")
    parser.add_argument("--threads", type=int, help="torch threads of every contender")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table and the picture into docs")
    return _measure.parse_with_peers(parser, PEERS)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    numel = arguments.numel or (QUICK_NUMEL if arguments.quick else 256 * MILLION)
    rounds = arguments.rounds or (5 if arguments.quick else 20)
    peer = None
    if "deepspeed" in arguments.peers:
        python = _measure.peer_python(*_measure.DEEPSPEED, arguments.deepspeed_python)
        peer = _measure.PeerProcess([python, Path(__file__).parent / "programs" / "deepspeed_adam.py"])
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
        _measure.console.print(_measure.table("What is asked", ASKED_COLUMNS, asked_rows(results)))
        _measure.console.print(str(machine))
    if arguments.write or not arguments.json:
        temporaries = temporaries_text(torch.get_num_threads())
    if not arguments.json:
        _measure.console.print(temporaries)
    if arguments.write:
        tables = [_measure.markdown(COLUMNS, rows_of(results)), _measure.markdown(ASKED_COLUMNS, asked_rows(results))]
        _measure.write_results("adam", "\n\n".join([str(machine), *tables, temporaries]))
        from benchmarks import _roofline

        _roofline.draw([result for result in results if result.contender != APART and is_drawn(result.case)])


if __name__ == "__main__":
    main()
