"""Python is replaced by another patch release in place

The interpreter's path stays the same; it is a link to one of two installed Pythons, as after an upgrade of the system.
"""

import subprocess
import sys
from pathlib import Path

from benchmarks.torture.bench import Bench, NotApplicable, Outcome
from benchmarks.torture.contenders import Environment

HEADER = "#undef VALUE\n#define VALUE PY_MICRO_VERSION\n"
TVM_FFI = ("tvm_ffi_load.py", "flashinfer_jit.py", "sglang_jit.py")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(bench: Bench) -> Outcome:
    if bench.contender.program in TVM_FFI or bench.contender.name == "Triton":
        raise NotApplicable("its op has no header of Python")
    prefix, micro = other_python()
    environment = Environment(bench.root, bench.contender)
    bench.python = environment.python
    if not bench.contender.is_native:  # the op of the old Python is right in the new one
        bench.prepare()
        environment.install_python(prefix)
        return bench.judge(bench.load(), 1)
    bench.write(1, HEADER)
    bench.prepare(expected=sys.version_info.micro)
    environment.install_python(prefix)
    return bench.judge(bench.load(), micro)


def other_python() -> tuple[Path, int]:
    """The prefix and the patch release of another Python of this minor version, with its headers."""
    for prefix in map(Path, ("/usr", "/usr/local", "/opt/python")):
        python = prefix / "bin" / f"python{VERSION}"
        if python.exists() and (prefix / "include" / f"python{VERSION}" / "Python.h").exists():
            code = "import sys; print(sys.version_info.micro)"
            micro = int(subprocess.check_output([python, "-c", code], text=True))
            if micro != sys.version_info.micro:
                return prefix, micro
    raise NotApplicable(f"another release of Python {VERSION} with headers is not installed")
