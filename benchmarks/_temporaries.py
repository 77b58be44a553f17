"""How far a step of CPU Adam makes the process grow for as long as it runs: its temporaries.

An allocator keeps freed blocks and hands them out again, and a process that keeps them does not grow.
So a process is made for the measurement, in which blocks above 64 KiB go back to the system at once
(``environment``) and smaller ones before the measured step, as whole pages (malloc_trim). What a step
takes for each tensor counts, so many small tensors may need more than one large one.

    python -m benchmarks._temporaries [threads]    prints, as JSON, the KiB of each case
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WARM_UP_STEPS = 3  # the first makes the state; from the third on it knows that gradients stay the same tensors
SHAPES = {"one of 16M": (1, 16 << 20), "10,000 x 1,024": (10_000, 1024)}
VARIANTS: dict[str, dict[str, Any]] = {"plain": {}, "8-bit, clipping": {"states": "8bit", "max_grad_norm": 1.0}}


def environment() -> dict[str, str]:
    """What a process needs whose growth is to be measured."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONMALLOC": "malloc",  # Python's own allocator keeps blocks too
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "0",
    }


def grown_kib(work: Callable[[], object]) -> int | None:
    """How much more memory this process held during ``work`` than before it, at most; None if that cannot be seen."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # other C libraries than glibc keep less
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident size
        before = _highest_resident_kib()
        work()
        return max(0, _highest_resident_kib() - before)
    except OSError:
        return None


def measure(threads: int) -> dict[str, int | None] | None:
    """The KiB of each case, in a process of its own; None where it died.

    Args:
        threads: torch threads of the step.
    """
    command = [sys.executable, "-m", "benchmarks._temporaries", str(threads)]
    child = subprocess.run(command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    result: dict[str, int | None] | None = json.loads(child.stdout) if child.returncode == 0 else None
    return result


def _highest_resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _step_kib(count: int, numel: int, **options: Any) -> int | None:
    import torch

    from op_builder.ops import CPUAdam

    params = [torch.nn.Parameter(torch.zeros(numel)) for _ in range(count)]
    for param in params:
        param.grad = torch.full_like(param, 1e-3)
    optimizer = CPUAdam(params, **options)
    for _ in range(WARM_UP_STEPS):
        optimizer.step()
    return grown_kib(optimizer.step)


def main() -> None:
    import torch

    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    kib = {
        f"{shape}, {variant}": _step_kib(*numbers, **options)
        for shape, numbers in SHAPES.items()
        for variant, options in VARIANTS.items()
    }
    print(json.dumps(kib))


if __name__ == "__main__":
    main()
