"""A JIT builder with faults that the torture suite has to find: a lock file that stays, a cache without a key."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType


def built(source: Path, cache: Path) -> Path:
    """The library, which is never built again."""
    library, lock = cache / "torture.so", cache / "lock"
    while lock.exists():
        time.sleep(0.1)
    if not library.exists():
        lock.touch()
        include = f"-I{sysconfig.get_path('include')}"
        command = ["g++", "-shared", "-fPIC", "-DTORCH_EXTENSION_NAME=torture", include, source, "-o", library]
        subprocess.run(command, check=True)
        lock.unlink()
    return library


def loaded(library: Path) -> ModuleType:
    """The module, without a check of the file."""
    spec = importlib.util.spec_from_file_location("torture", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print("value", loaded(built(Path(sys.argv[1], "op.cpp"), Path(os.environ["CARELESS_CACHE"]))).value())
