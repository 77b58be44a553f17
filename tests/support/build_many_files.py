"""A program that builds an op of all C++ files in the directory that its argument names, as on 16 cores."""

from __future__ import annotations

import sys
from pathlib import Path

from op_builder import Binding, OpBuilder
from op_builder.cache.store import Cache
from op_builder.toolchains import jobs
from tests.support.builds import cached_or_built

DIRECTORY = Path(sys.argv[1])


class ManyBuilder(OpBuilder):
    NAME, BUILD_VAR, BINDING = "many", "ACCEL_BUILD_MANY", Binding.TORCH
    cache = Cache(DIRECTORY / "cache")

    def sources(self) -> list[str]:
        return sorted(map(str, DIRECTORY.glob("*.cpp")))

    def cxx_args(self) -> list[str]:
        return ["-O0", "-DVALUE=1"]


if __name__ == "__main__":
    jobs.available_cores = lambda *_: 16
    assert cached_or_built(ManyBuilder()).is_intact()
