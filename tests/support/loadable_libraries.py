"""Prints which of the named files in a directory this Python loads after torch, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from importlib import machinery

import torch  # noqa: F401


def loads(path: str) -> bool:
    """Whether the loader opens a library, or Python finds a module whose name has a tag."""
    module, _, tag = os.path.basename(path).removesuffix(".so").partition(".")
    if tag:
        loader = (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES)
        return machinery.FileFinder(os.path.dirname(path), loader).find_spec(module) is not None
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps({name: loads(os.path.join(sys.argv[1], name)) for name in sys.argv[2:]}))
