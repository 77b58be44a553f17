"""A step of CPU Adam against the memory's limit, torch, DeepSpeed, torchao and bitsandbytes.

The limit of a case is the time to move its bytes at the bandwidth of x.mul_(1) (8 bytes
for each float32 element, in place), measured in the same run with the same threads. It is
the bandwidth of memory only if the tensors fit in no cache: choose --numel accordingly.
The contenders alternate; a figure is the best of a contender's turns.

Contenders work in the same memory, also the peer in another process and the limit's
stream: on shared machines the pages of one process can be half as fast as others. Only
small tensors and packed moments are in memory of the contender's own. In the rows of
GPT-2 small's 148 tensors every contender has a process of its own.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

import torch

from benchmarks import _adam_models, _measure, _peers, _temporaries
from benchmarks._adam_cases import MILLION, Case, OwnMemory, SharedMemory, make_cases
from benchmarks._measure import Requirement, Table, at_least, at_most, requirement_table, seconds_of
from op_builder.ops import CPUAdam

OURS, LIMIT = "accel-ops", "limit"
SEPARATE = "accel-ops, separate passes"
FP32_MOMENTS = "accel-ops, fp32 moments"
PEERS = ("torch", "deepspeed", "bitsandbytes", "torchao")
QUICK_NUMEL = 16 * MILLION
PICTURE = _measure.IMAGES / "adam.png"
PICTURE_8BIT = _measure.IMAGES / "adam_8bit.png"


@dataclasses.dataclass(frozen=True)
class Result:
    """One contender in one case.

    Attributes:
        seconds: of each turn.
        limit_s: the time to move the case's bytes.
    """

    case: Case
    contender: str
    seconds: list[float]
    limit_s: float

    @property
    def best_s(self) -> float:
        return min(self.seconds)


def timed(work: Callable[[], object], before: Callable[[], object] | None = None) -> Callable[[], float]:
    """A function that calls ``before`` and ``work`` and returns the seconds of ``work``."""

    def run() -> float:
        if before is not None:
            before()
        return seconds_of(work)

    return run


def local_contenders(case: Case, memory: SharedMemory | OwnMemory, peers: list[str]) -> dict[str, Callable[[], float]]:
    """The contenders in this process, on the same tensors: ours, torch's, the limit's stream."""
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
    if case.has_extras:
        copies: dict[torch.Tensor, torch.Tensor] = {
            param: torch.zeros_like(param, dtype=torch.bfloat16, requires_grad=False) for param in params
        }
        contenders[SEPARATE] = timed(lambda: step_in_separate_passes(ours, params, copies))
        fused = CPUAdam(params, weight_decay=0.01, max_grad_norm=1.0)
        fused.state.update(ours.state)
        fused.write_copies(copies)
        contenders[OURS] = timed(lambda: fused.step(grad_scale=1.0))
    else:
        contenders[OURS] = timed(ours.step, before)
    if case.is_packed:  # measured here because the memory's speed differs from case to case
        unpacked = CPUAdam(params, weight_decay=0.01, states="float32")
        warm_up(unpacked, memory)
        contenders[FP32_MOMENTS] = timed(unpacked.step)
    if "torch" in peers and case.moment == case.dtype:  # torch's moments have the parameters' dtype
        theirs = torch.optim.AdamW(params, weight_decay=0.01, fused=True)
        theirs.state.update({param: {**state, "step": state["step"].clone()} for param, state in ours.state.items()})
        if case.has_extras:
            contenders["torch"] = timed(lambda: step_in_separate_passes(theirs, params, copies))
        else:
            contenders["torch"] = timed(theirs.step, before)
    return contenders


def warm_up(optimizer: CPUAdam, memory: SharedMemory | OwnMemory) -> None:
    """Make the optimizer's moments, in shared memory if that has room for them, and let it prepare its lists."""
    optimizer.step()
    if isinstance(memory, SharedMemory) and optimizer.param_groups[0]["states"] in ("float32", "param"):
        memory.place(optimizer)
        optimizer.step()
    optimizer.step()  # sees that the gradients are the same tensors as before


def step_in_separate_passes(
    optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], copies: dict[torch.Tensor, torch.Tensor]
) -> None:
    """Unscale and check for infinity, clip, step and copy, one pass after the other."""
    grads = [param.grad for param in params if param.grad is not None]
    found_inf, inverse_scale = torch.zeros(()), torch.ones(())
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inverse_scale)
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()
    for param, copy in copies.items():
        copy.copy_(param.detach())


def run_case(case: Case, peers: list[str], rounds: int, peer: _peers.PeerProcess | None) -> list[Result]:
    """Measure one case."""
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
    seconds = _measure.interleave(contenders, rounds, case.name)
    element_s = min(seconds.pop(LIMIT)) / memory.stream_bytes * case.total
    with_fp32 = dataclasses.replace(case, states="float32")
    return [
        Result(case, name, turns, element_s * (with_fp32 if name == FP32_MOMENTS else case).bytes_per_element)
        for name, turns in seconds.items()
    ]


def result_table(results: Sequence[Result]) -> Table:
    """One row for each contender of each case."""
    ours = {result.case: result.best_s for result in results if result.contender == OURS}
    rows = [
        [
            result.case.name,
            result.contender,
            f"{result.best_s * 1e3:.1f} ms",
            f"{statistics.median(result.seconds) * 1e3:.1f} ms",
            f"{result.limit_s * 1e3:.1f} ms",
            f"{result.limit_s / result.best_s:.2f}",
            "" if result.contender == OURS else f"{result.best_s / ours[result.case]:.2f} x",
        ]
        for result in results
    ]
    columns = ("case", "contender", "best", "median", "limit", "limit / best", "best / accel-ops")
    return Table("A step of CPU Adam", columns, rows)


def requirements(results: Sequence[Result]) -> list[Requirement]:
    """The limits of our figures."""
    found = []
    for result in results:
        if result.contender != OURS:
            continue
        case = result.case
        others = {other.contender: other.best_s for other in results if other.case == case and other is not result}
        if case.least_of_limit is not None and case.is_packed:
            bytes_ratio = dataclasses.replace(case, states="float32").bytes_per_element / case.bytes_per_element
            share = others[FP32_MOMENTS] / result.best_s / bytes_ratio
            found.append(
                at_least(f"{case.name}: speedup over fp32 moments / ratio of bytes", share, case.least_of_limit)
            )
        elif case.least_of_limit is not None:
            found.append(at_least(f"{case.name}: limit / time", result.limit_s / result.best_s, case.least_of_limit))
        if case.least_ratio is not None and others:
            best = min(others, key=others.__getitem__)
            found.append(at_least(f"{case.name}: {best}'s time", others[best] / result.best_s, case.least_ratio, "x"))
    return found


def temporaries(threads: int) -> list[Requirement]:
    """The temporary memory of a step; empty if the system does not show it."""
    kib = _temporaries.measure(threads) or {}
    return [
        at_most(f"temporary memory of a step, {case}", grown, threads << 10, "KiB")
        for case, grown in kib.items()
        if grown is not None
    ]


def draw(results: Sequence[Result], models: Sequence[_adam_models.ModelResult]) -> None:
    """Draw how near each contender comes to the limit, and the times of all with 8-bit moments, to docs/images."""
    groups: dict[str, dict[str, float]] = {}
    for result in results:
        groups.setdefault(result.case.name, {})[result.contender] = result.limit_s / result.best_s
    _measure.draw_bars(PICTURE, "A step of CPU Adam", "speed, as a share of the memory's limit", groups, limit=1.0)
    times: dict[str, dict[str, float]] = {}
    for model in models:
        if "8-bit" in model.case.name:
            times.setdefault(model.case.name, {})[model.contender] = min(model.seconds) * 1e3
    _measure.draw_bars(PICTURE_8BIT, "step() and zero_grad() with 8-bit moments", "milliseconds", times)


def main() -> None:
    parser = _measure.make_parser("adam", __doc__, "16M elements, five turns", PEERS)
    parser.add_argument(
        "--numel", type=_measure.positive, metavar="N", help="elements of the large cases (default: 256M = 2**28)"
    )
    arguments = parser.parse_args()
    numel = arguments.numel or (QUICK_NUMEL if arguments.quick else 256 * MILLION)
    machine = _measure.describe_machine()
    peer = None
    if "deepspeed" in arguments.peers:
        peer = _peers.PeerProcess([_peers.deepspeed_python(), _peers.PROGRAMS / "deepspeed_adam.py"])
    results: list[Result] = []
    for case in make_cases(numel):
        results += run_case(case, arguments.peers, 5 if arguments.quick else 20, peer)
    if peer is not None:
        peer.close()
    models: list[_adam_models.ModelResult] = []
    for model_case in _adam_models.model_cases(arguments.peers):
        models += _adam_models.run_case(model_case, 2 if arguments.quick else 15)
    required = [*requirements(results), *temporaries(torch.get_num_threads())]
    tables = [
        result_table(results),
        _adam_models.model_table(models),
        requirement_table(required),
    ]
    samples = {
        "steps": [
            {"case": one.case.name, "contender": one.contender, "limit_s": one.limit_s, "seconds": one.seconds}
            for one in results
        ],
        "models": [
            {"case": one.case.name, "contender": one.contender, "seconds": one.seconds, "state_bytes": one.state_bytes}
            for one in models
        ],
    }
    _measure.report("adam", arguments, machine, tables, samples)
    if arguments.write:
        draw(results, models)


if __name__ == "__main__":
    main()
