"""The libraries whose symbols every other library of this process finds (``RTLD_GLOBAL``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable


class _Location(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def libraries_offering(symbols: Iterable[str]) -> list[str]:
    """The libraries in this process's global scope that define one of ``symbols``; not the program itself."""
    process = ctypes.CDLL(None)
    location = _Location()
    found: dict[str, None] = {}
    for symbol in symbols:
        try:
            address = ctypes.cast(getattr(process, symbol), ctypes.c_void_p)
            known = process.dladdr(address, ctypes.byref(location))
        except AttributeError:  # no such symbol
            continue
        file = os.fsdecode(location.file) if known and location.file else ""
        if file.endswith(".so") or ".so." in file:
            found[os.path.realpath(file)] = None
    return list(found)
