"""The benchmark of CPU Adam: what its figures say, without running it, and how it sees temporaries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import _temporaries, adam

LARGE = adam.make_cases(adam.QUICK_NUMEL)
NOISE_KIB = 512  # the kernel counts each thread's pages to within some dozens
MIB = 1 << 10

PRELUDE = """
import torch
from benchmarks._temporaries import grown_kib
def one_block():
    torch.zeros(2 << 20)
def many_small_blocks():
    blocks = [torch.zeros(1 << 10) for _ in range(2 << 10)]
def many_objects():
    objects = [float(i) for i in range(200_000)]
def nothing():
    pass
"""


def in_child(call: str) -> int | None:
    """The KiB that work run once before, as a step is, makes a process like the benchmark's grow by."""
    script = f"{PRELUDE}\n{call}()\nprint(grown_kib({call}))"
    command = [sys.executable, "-c", script]
    child = subprocess.run(command, env=_temporaries.environment(), capture_output=True, text=True, check=True)
    result: int | None = json.loads(child.stdout.replace("None", "null"))
    return result


@pytest.mark.parametrize(
    ("work", "least_kib", "most_kib"),
    [
        ("one_block", 8 * MIB, 16 * MIB),
        ("many_small_blocks", 8 * MIB, 16 * MIB),
        ("many_objects", 5 * MIB, 10 * MIB),
        ("nothing", 0, 0),
    ],
)
def test_temporaries_are_seen_even_if_they_were_allocated_before(work: str, least_kib: int, most_kib: int) -> None:
    grown = in_child(work)
    if grown is None:
        pytest.skip("/proc/self/clear_refs cannot be written here")
    assert least_kib - NOISE_KIB <= grown <= most_kib + NOISE_KIB


@pytest.mark.slow
def test_a_step_takes_less_than_a_mebibyte_a_thread_beside_its_tensors() -> None:
    threads = 2
    kib = _temporaries.measure(threads)
    assert kib is not None
    assert len(kib) == 4
    if None in kib.values():
        pytest.skip("/proc/self/clear_refs cannot be written here")
    assert {case: grown for case, grown in kib.items() if grown is not None and grown > threads * MIB} == {}


def results_of(case: adam.Case, seconds: dict[str, float], limit_s: float = 1.0) -> list[adam.Result]:
    return [adam.Result(case, contender, [best, 2 * best], limit_s) for contender, best in seconds.items()]


def case_of(states: str) -> adam.Case:
    return next(case for case in LARGE if case.states == states)


def test_packed_moments_are_compared_with_plain_ones_of_the_same_case() -> None:
    case = case_of("bfloat16")
    # 28 bytes in 2.8 s, 20 in 2.1 s; what fp32 took in its own case does not count.
    results = results_of(LARGE[0], {adam.OURS: 100.0}) + results_of(case, {adam.OURS: 2.1, adam.PLAIN: 2.8})
    (row,) = [row for row in adam.asked_rows(results) if row[0] == case.name]
    assert row[2:] == ["ok", "0.95", "0.9"]
    (row,) = adam.asked_rows(results_of(case, {adam.OURS: 2.3, adam.PLAIN: 2.8}))
    assert row[2:] == ["miss", "0.87", "0.9"]


def test_every_verdict_has_a_row() -> None:
    case = case_of("param")
    rows = adam.asked_rows(results_of(case, {adam.OURS: 1.1, "torch": 1.3, "deepspeed": 1.2}))
    assert [row[1:] for row in rows] == [
        ["share of the limit", "miss", "0.91", "0.95"],
        ["times as fast as deepspeed", "ok", "1.09", "1"],
    ]


def test_temporaries_that_cannot_be_measured_are_no_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"small": 3 * MIB, "large": None}
    monkeypatch.setattr(_temporaries, "measure", lambda _threads: found)
    assert adam.temporaries_text(2).splitlines()[2:] == ["- small: miss, 3072 KiB", "- large: not measured"]
    monkeypatch.setattr(_temporaries, "measure", lambda _threads: None)
    assert "not measured" in adam.temporaries_text(2)


@pytest.mark.parametrize("compute", [1.0, 20.0, 100.0])
def test_the_roofs_meet_wherever_the_ridge_lies(compute: float) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import _roofline

    intensities, rates = _roofline.roofs(10.0, compute)
    assert intensities == sorted(intensities)
    assert rates == [min(10.0 * intensity, compute) for intensity in intensities]
    assert rates[intensities.index(compute / 10.0)] == pytest.approx(compute)
