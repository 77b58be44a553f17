"""The temporary memory of a step of CPU Adam.

``python -m benchmarks._temporaries [THREADS]`` prints the KiB of each case as JSON.

An allocator reuses the blocks that it keeps, and then a process does not grow. So a process is started for this alone,
in which blocks above 64 KiB are returned to the system at once (``environment``), and smaller ones before the measured
step, as whole pages (malloc_trim). A step may take some memory for each tensor, so many small tensors are a case too.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _processes
from benchmarks._measure import ROOT

WARM_UP_STEPS = 3  # the first makes the state; the third sees the same gradient tensors again
SHAPES = {"one of 16M": (1, 16 << 20), "10,000 x 1,024": (10_000, 1024)}
VARIANTS: dict[str, dict[str, Any]] = {"plain": {}, "8-bit, clipping": {"states": "8bit", "max_grad_norm": 1.0}}


def environment() -> dict[str, str]:
    """The environment of a process whose growth can be measured."""
    return _processes.environment(
        Path(sys.executable),
        PYTHONMALLOC="malloc",  # Python's own allocator keeps blocks too
        MALLOC_MMAP_THRESHOLD_="65536",
        MALLOC_TRIM_THRESHOLD_="0",
    )


def grown_kib(work: Callable[[], object]) -> int | None:
    """By how many KiB this process grows at most during ``work``; None if the system does not show it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # only glibc has it; other C libraries keep less
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _peak_kib()
        work()
        return max(0, _peak_kib() - before)
    except OSError:
        return None


def measure(threads: int) -> dict[str, int | None] | None:
    """The KiB of each case with so many torch threads, in a new process; None if that process died."""
    command = [sys.executable, "-m", "benchmarks._temporaries", str(threads)]
    child = subprocess.run(command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    result: dict[str, int | None] | None = json.loads(child.stdout) if child.returncode == 0 else None
    return result


def _peak_kib() -> int:
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
