"""Importing the packages does nothing: seen from a new process, with empty directories to write to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.foreign_package import python

# Everything that importing might do is recorded by Python's own audit events, so nothing is replaced.
WATCH = """
import os, sys
seen = []
def watch(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.mkdir", "os.rename",
                 "os.remove", "os.putenv", "os.unsetenv", "socket.connect", "tempfile.mkdtemp", "tempfile.mkstemp",
                 "ctypes.dlopen"):
        seen.append((event, arguments))
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append((event, arguments))
sys.addaudithook(watch)
before, modules = dict(os.environ), set(sys.modules)
"""
REPORT = """
assert seen == [], seen
assert dict(os.environ) == before
loaded = set(sys.modules) - modules
heavy = {"torch", "numpy", "subprocess", "rich", "psutil", "filelock", "setuptools", "ninja", "pybind11", "ctypes"}
assert not loaded & heavy, loaded & heavy
"""


def run_isolated(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new process whose home, cache, temporary and current directories are new and empty."""
    places = {name: tmp_path / name for name in ("HOME", "ACCEL_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR", "CWD")}
    for place in places.values():
        place.mkdir()
    variables: dict[str, str | None] = {name: str(place) for name, place in places.items()}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "ACCEL_ACCELERATOR": None, "DS_ACCELERATOR": None}
    return python("-c", WATCH + code + REPORT, cwd=places["CWD"], **variables)


CODES = {
    "the packages": "import accelerator, op_builder\nassert not {'logging', 'typing'} & set(sys.modules)\n",
    "the other way round": "import op_builder, accelerator\n",
    "the entry points": "from accelerator import get_accelerator, set_accelerator\n",
    "looking at the package": "import op_builder; op_builder.__version__; dir(op_builder)\n",
    "names and errors": "import accelerator, op_builder.env, op_builder.errors\n"
    "from accelerator.real_accelerator import SUPPORTED_ACCELERATOR_LIST\n"
    "from accelerator.abstract_accelerator import DeepSpeedAccelerator\n",
    "builders without torch": "from op_builder.builder import OpBuilder, CPUOpBuilder, CUDAOpBuilder, SYCLOpBuilder\n"
    "import op_builder.cpu, op_builder.cuda, op_builder.xpu, op_builder.ops\n"
    "assert not {'torch', 'rich', 'xxhash'} & set(sys.modules)\n"
    "modules |= set(sys.modules)\n",  # subprocess may be imported here, not started
}


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_importing_starts_imports_and_writes_nothing(code: str, tmp_path: Path) -> None:
    done = run_isolated(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""
    assert [path for path in tmp_path.rglob("*") if path.parent != tmp_path] == []
