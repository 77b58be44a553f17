"""Importing what other parties bring: a package may be absent, raise anything, print, even end the process."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType

from accelerator.errors import BrokenPackageError, describe

_failures: dict[str, ImportError] = {}


def import_vendor(name: str) -> ModuleType:
    """The module of that name. A package that failed is not run again in this process.

    Raises:
        ModuleNotFoundError: it, or what it imports, is not installed.
        ImportError: the import raised this, or anything else (IPEX calls ``exit()``), as :class:`BrokenPackageError`.
    """
    if name in _failures:
        raise _failures[name].with_traceback(None)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure = error if isinstance(error, ImportError) else BrokenPackageError(describe(error))
        absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        if not absent:  # then nothing was run, and it may still be installed
            _failures[name] = failure
        raise failure from (None if failure is error else error)


def optional_vendor(name: str) -> ModuleType | None:
    """The module of that name, or None where it is absent or broken."""
    try:
        return import_vendor(name)
    except ImportError:
        return None


@contextmanager
def standard_output_kept() -> Iterator[None]:
    """What a vendor's library prints, in Python or in C, goes to standard error: the output is the caller's."""
    kept = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C has buffered for a pipe would come after our own
        os.dup2(kept, 1)
        os.close(kept)
