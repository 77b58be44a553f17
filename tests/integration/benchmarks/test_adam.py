"""The benchmark of CPU Adam: how it measures temporary memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import _temporaries

NOISE_KIB = 512  # the kernel's count of pages is off by some dozens for each thread
MIB = 1 << 10

WORK = """
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
for work in (one_block, many_small_blocks, many_objects, nothing):
    work()
    print(grown_kib(work))
"""


def test_temporary_memory_is_measured_even_if_it_was_allocated_before() -> None:
    command = [sys.executable, "-c", WORK]
    child = subprocess.run(command, env=_temporaries.environment(), capture_output=True, text=True, check=True)
    if "None" in child.stdout:
        pytest.skip("/proc/self/clear_refs cannot be written here")
    bounds_mib = [(8, 16), (8, 16), (5, 10), (0, 0)]
    for grown_kib, (least, most) in zip(map(int, child.stdout.split()), bounds_mib, strict=True):
        assert least * MIB - NOISE_KIB <= grown_kib <= most * MIB + NOISE_KIB


@pytest.mark.slow
def test_a_step_takes_less_than_a_mebibyte_for_each_thread() -> None:
    threads = 2
    kib = _temporaries.measure(threads)
    assert kib is not None
    assert len(kib) == 4
    if None in kib.values():
        pytest.skip("/proc/self/clear_refs cannot be written here")
    assert {case: grown for case, grown in kib.items() if grown is not None and grown > threads * MIB} == {}
