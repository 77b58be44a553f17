"""The benchmark of the device layer."""

from __future__ import annotations

from accelerator.cpu_accelerator import CPU_Accelerator
from benchmarks import accelerator


def test_a_row_shows_the_difference_and_both_times() -> None:
    row = accelerator.row("x()", [1250.0, 1300.0, 1200.0], [1200.0, 1210.0, 1190.0])
    assert dict(zip(accelerator.COLUMNS, row, strict=True)) == {
        "call": "x()",
        "verdict": "ok",
        "added": "50 ns",
        "limit": "<= 300 ns",
        "torch": "1,200 ns",
        "accel-ops": "1,250 ns",
    }


def test_the_calls_compared_do_the_same() -> None:
    calls = {**accelerator.delegated_calls(CPU_Accelerator()), **accelerator.cuda_calls()}
    for name, (ours, theirs) in calls.items():
        mine, expected = ours(), theirs()
        same = (mine == expected).all() if name == "get_rng_state()" else mine == expected
        assert bool(same), name
