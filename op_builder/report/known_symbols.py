"""The symbols that releases of torch and CPython export; ``build_tools/torch_symbols.py`` makes the lists."""

from __future__ import annotations

import base64
import json
import lzma
import zlib
from array import array
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).with_name("known_symbols.json")
LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so")


class KnownSymbols(NamedTuple):
    """The lists.

    Attributes:
        torch, python: the releases, oldest first.
        cuda_libraries: for each release of torch, the libraries that not all need: ``libcudart.so.12``.
        masks: for the CRC-32 sum of each name, a bit for each release, torch's first, and for each of
            :data:`LIBRARIES` in which it was found. One unknown name in 35,000 has a known name's sum.
    """

    torch: tuple[str, ...]
    python: tuple[str, ...]
    cuda_libraries: dict[str, list[str]]
    masks: dict[int, int]

    def releases(self, symbol: str) -> set[str]:
        """Those that export ``symbol``."""
        return self._named(symbol, (*self.torch, *self.python), 0)

    def libraries(self, symbol: str) -> set[str]:
        """Those of torch that define ``symbol``."""
        return self._named(symbol, LIBRARIES, len(self.torch + self.python))

    def needs_cuda(self, symbol: str) -> bool:
        """Whether only CUDA builds of torch have it."""
        found = self.libraries(symbol)
        return bool(found) and all(name.endswith("_cuda.so") for name in found)

    def _named(self, symbol: str, names: tuple[str, ...], first: int) -> set[str]:
        mask = self.masks.get(zlib.crc32(symbol.encode()), 0) >> first
        return {name for at, name in enumerate(names) if mask >> at & 1}


@cache
def known_symbols() -> KnownSymbols:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    content = lzma.decompress(base64.b85decode(data["symbols"]))
    masks: dict[int, int] = {}
    at = 0
    while at < len(content):
        mask, count = array("I", content[at : at + 8])
        steps = bytearray(4 * count)
        for plane in range(4):
            begin = at + 8 + plane * count
            steps[plane::4] = content[begin : begin + count]
        for value in accumulate(array("I", bytes(steps))):
            masks[value] = masks.get(value, 0) | mask
        at += 8 + 4 * count
    return KnownSymbols(tuple(data["torch"]), tuple(data["python"]), data["cuda_libraries"], masks)
