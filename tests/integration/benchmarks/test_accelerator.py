"""The benchmark of the device layer."""

from __future__ import annotations

from accelerator.cpu_accelerator import CPU_Accelerator
from benchmarks import accelerator


def test_the_calls_compared_do_the_same() -> None:
    calls = {**accelerator.delegated_calls(CPU_Accelerator()), **accelerator.cuda_calls()}
    for name, (ours, theirs) in calls.items():
        mine, expected = ours(), theirs()
        same = (mine == expected).all() if name == "get_rng_state()" else mine == expected
        assert bool(same), name
