"""The peak memory of training, with one step for all parameters and with updates during backward().

A model of linear layers in float32 is trained with a small batch, so that parameters, gradients and
the states of AdamW take nearly all memory. The peak is that of the process, less what it had before
it made the model. The time is that of the best iteration. The contenders alternate.
"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks import _measure
from benchmarks._measure import IMAGES, Table, at_most, duration, interleave, requirement_table
from benchmarks._peers import PROGRAMS
from benchmarks._processes import run_program
from benchmarks.programs.training_memory import WAYS

PICTURE = IMAGES / "training_memory.png"
LAYERS, WIDTH = 48, 2048


def main() -> None:
    arguments = _measure.make_parser("memory", __doc__, "a quarter of the parameters, one turn").parse_args()
    machine = _measure.describe_machine()
    width, turns = (WIDTH // 2, 1) if arguments.quick else (WIDTH, 3)
    program = PROGRAMS / "training_memory.py"
    # Without a fixed threshold the C library keeps freed blocks of this size for itself.
    threshold = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    contenders = {way: partial(run_program, program, way, str(LAYERS), str(width), **threshold) for way in WAYS}
    runs = interleave(contenders, turns, "training", warm_ups=0)
    parameters = LAYERS * width**2
    per_parameter = {way: statistics.median(run["bytes"] for run in found) / parameters for way, found in runs.items()}
    rows = [
        [
            way,
            f"{of_one:.1f}",
            f"{of_one * parameters / 2**30:.2f} GiB",
            duration(min(run["seconds"] for run in runs[way])),
        ]
        for way, of_one in per_parameter.items()
    ]
    tables = [
        Table(
            f"Training {parameters / 1e6:.0f} M float32 parameters",
            ("update", "bytes per parameter", "peak", "an iteration"),
            rows,
        ),
        requirement_table(
            [
                at_most(
                    "peak of in_backward, in those of torch's recipe",
                    per_parameter["accel-ops, in_backward"] / per_parameter["torch, a hook for each parameter"],
                    1.01,
                ),
                at_most("bytes with bfloat16 gradients", per_parameter["accel-ops, bfloat16 gradients"], 14.5),
            ]
        ),
    ]
    _measure.report("memory", arguments, machine, tables, runs)
    if arguments.write:
        groups = {way: {"peak": of_one} for way, of_one in per_parameter.items()}
        _measure.draw_bars(PICTURE, "Peak memory of training with AdamW", "bytes per float32 parameter", groups)


if __name__ == "__main__":
    main()
