"""The memory that a step of CPU Adam takes for a while."""

from __future__ import annotations

import pytest

from benchmarks import _temporaries

MIB = 1 << 10


@pytest.mark.slow
def test_a_step_takes_less_than_a_mebibyte_for_each_thread() -> None:
    threads = 2
    kib = _temporaries.measure(threads)
    assert kib is not None
    assert len(kib) == 4
    if None in kib.values():
        pytest.skip("/proc/self/clear_refs cannot be written here")
    assert {case: grown for case, grown in kib.items() if grown is not None and grown > threads * MIB} == {}
