"""Steps of optimizers in host memory under FSDP2: their time, the bytes of their states, and the resident set.

A model of 21 M float32 parameters in 160 tensors is split over two ranks with a thread each. Each step gets new
gradients. The resident set of a rank is that after a tenth of the steps, and after all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import _measure
from benchmarks._peers import PROGRAMS
from benchmarks._processes import run_program
from benchmarks.programs.sharded_steps import CONTENDERS, LAYERS, WIDTH

PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
STEPS = 1000
ROUNDS = 3


def main() -> None:
    arguments = _measure.make_parser("sharded", __doc__, "a tenth of the steps").parse_args()
    machine = _measure.describe_machine()
    steps = STEPS // 10 if arguments.quick else STEPS
    programs = {name: partial(run_program, PROGRAMS / "sharded_steps.py", name, str(steps)) for name in CONTENDERS}
    runs: dict[str, list[dict[str, Any]]] = _measure.interleave(programs, ROUNDS, "steps under FSDP2", warm_ups=0)
    rows = []
    for name, turns in runs.items():
        run = sorted(turns, key=lambda turn: turn["seconds"])[len(turns) // 2]  # the median
        resident = [f"{size / 2**20:,.0f} MiB" for size in run["resident"]]
        rows.append([name, _measure.duration(run["seconds"]), f"{run['states'] / (PARAMETERS / 2):.2f}", *resident])
    columns = ("optimizer", "step", "bytes of states per parameter", f"resident, step {steps // 10}", f"step {steps}")
    title = f"FSDP2 on two ranks, {PARAMETERS / 1e6:.0f} M float32 parameters in 160 tensors"
    _measure.report("sharded", arguments, machine, [_measure.Table(title, columns, rows)], runs)


if __name__ == "__main__":
    main()
