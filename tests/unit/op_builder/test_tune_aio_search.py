"""What the tuner of async_io tries and finds best, on a simulated disk."""

from __future__ import annotations

import pytest

from op_builder.errors import AccelError
from op_builder.system import storage_engines
from op_builder.tune_aio import COORDINATES, Measurement, Settings, search


def speed(settings: Settings) -> Measurement:
    """Best: libaio, 1M, 32 in flight, 2 threads, single_submit, overlap_events."""
    rate = 1e9
    rate += {"io_uring": 0, "libaio": 50e6, "threads": -400e6}[settings.engine]
    rate -= abs(settings.block_size - (1 << 20)) * 100
    rate -= abs(settings.queue_depth - 32) * 1e6
    rate -= abs(settings.intra_op_parallelism - 2) * 1e6
    rate += settings.single_submit * 2e6 + settings.overlap_events * 1e6
    return Measurement(settings, rate, rate / 2, 1.0)


def test_the_best_is_found_along_every_dimension() -> None:
    found, failed = search(storage_engines.ENGINES, COORDINATES, speed)
    assert found[0].settings == Settings("libaio", 1 << 20, 32, True, True, 2)
    assert found[0].read_bytes_per_s == pytest.approx(1e9 + 53e6)
    assert {one.settings.engine for one in found} == set(storage_engines.ENGINES)
    assert failed == {}


def test_a_lucky_moment_does_not_win() -> None:
    seen: list[Settings] = []

    def measure(settings: Settings) -> Measurement:
        is_lucky = settings.queue_depth == 8 and seen.count(settings) == 1
        seen.append(settings)
        rate = 9e9 if is_lucky else 2e9 if settings.queue_depth == 32 else 1e9
        return Measurement(settings, rate, rate, 1.0)

    found, _ = search(["threads"], [[{"queue_depth": 8}, {"queue_depth": 32}]], measure)
    assert found[0].settings.queue_depth == 32


def test_settings_that_the_system_refuses_are_skipped_until_none_is_left() -> None:
    def measure(settings: Settings) -> Measurement:
        if settings.engine == "libaio" or settings.queue_depth > 32:
            raise AccelError("no queue of that size")
        return speed(settings)

    found, failed = search(["libaio", "io_uring"], COORDINATES, measure)
    assert {one.settings.engine for one in found} == {"io_uring"}
    assert set(failed.values()) == {"no queue of that size"}
    with pytest.raises(AccelError, match="no queue"):
        search(["libaio"], COORDINATES, measure)
