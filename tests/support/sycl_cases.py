"""What the tests of SYCL kernels share."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from op_builder.toolchains.sycl_runtime import find_runtime

needs_sycl = pytest.mark.skipif(find_runtime() is None, reason="needs the SYCL runtime: the extra sycl")


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Call ``work(i)`` for all i below ``count`` concurrently; raise the first exception."""
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            together.wait()
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
