"""apache-tvm-ffi: its module, headers and library, for ops of ``Binding.TVM_FFI``."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from op_builder.errors import IncompatibleOpError
from op_builder.plan import ForeignLibrary

INSTALL_REMEDY = "Install it: `pip install apache-tvm-ffi`."


def tvm_ffi() -> Any:
    """The module ``tvm_ffi``; its import opens its library.

    Raises:
        IncompatibleOpError: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module("tvm_ffi")
    except Exception as error:
        reason = f"apache-tvm-ffi cannot be imported: {type(error).__name__}: {error}."
        raise IncompatibleOpError(reason, INSTALL_REMEDY) from error


@cache
def tvm_ffi_library() -> ForeignLibrary:
    """The library as a plan names it.

    Raises:
        IncompatibleOpError: it is not installed, cannot be imported or lacks a file.
    """
    version = tvm_ffi().__version__
    try:
        places = importlib.import_module("tvm_ffi.libinfo")
        include_dir, library = Path(places.find_include_path()), Path(places.find_libtvm_ffi())
    except Exception as error:
        raise IncompatibleOpError(f"apache-tvm-ffi {version} is not complete: {error}.", INSTALL_REMEDY) from error
    return ForeignLibrary("tvm_ffi", version, include_dir, library)
