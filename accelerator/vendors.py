"""Importing vendors' packages, which may be absent, raise anything, print, or even end the process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType

_failures: dict[str, BaseException] = {}


def import_vendor(name: str) -> ModuleType:
    """Import the module; raises any exception of the import, also ``SystemExit`` (IPEX calls ``exit()``).

    A package whose import failed is not imported again in this process.
    """
    if name in _failures:
        raise _failures[name].with_traceback(None)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        if not absent:  # an absent package may still be installed later
            _failures[name] = error
        raise


def optional_vendor(name: str) -> ModuleType | None:
    """The module, or None if it is absent or broken."""
    try:
        return import_vendor(name)
    except (Exception, SystemExit):
        return None


@contextmanager
def redirect_output_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error, for Python and C, while a vendor's library may print."""
    import ctypes

    kept = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # before ours: C buffers output to a pipe
        os.dup2(kept, 1)
        os.close(kept)
