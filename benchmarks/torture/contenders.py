"""Who is tried: how each is installed, which variable moves its cache, and what its op looks like."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import _peers


@dataclasses.dataclass(frozen=True)
class Contender:
    """One JIT builder.

    Attributes:
        name: in the table.
        program: a file in ``programs/``.
        distribution: whose version the table shows.
        cache_variable: the environment variable that names its cache directory.
        requirements: arguments of ``pip install`` for it; empty if this environment has it.
        is_native: it compiles a C++ source, so that cases with headers, flags and compilers apply.
        settings: more variables; ``{root}`` is the bench's directory.
        is_run_by_accel_ops: the program is started by ``accel-ops run``.
        is_ours: it is part of this project.
    """

    name: str
    program: str
    distribution: str
    cache_variable: str
    requirements: str = ""
    is_native: bool = True
    settings: tuple[tuple[str, str], ...] = ()
    is_run_by_accel_ops: bool = False
    is_ours: bool = False

    def python(self) -> Path:
        """The interpreter that runs it; it is installed first if needed.

        Raises:
            subprocess.CalledProcessError: pip failed.
        """
        if not self.requirements:
            return Path(sys.executable)
        is_one = " " not in self.requirements
        return _peers.peer_environment(self.requirements if is_one else self.distribution, self.requirements)

    def command(self) -> list[str]:
        """What starts a program with it."""
        if self.is_run_by_accel_ops:
            return [str(Path(sysconfig.get_path("scripts")) / "accel-ops"), "run"]
        return [str(self.python())]

    def version(self) -> str:
        """The version of its distribution, as that interpreter finds it."""
        code = f"import importlib.metadata as m; print(m.version('{self.distribution}'))"
        return subprocess.check_output([self.python(), "-c", code], text=True).strip()


COMMON = "requests urllib3 certifi charset-normalizer idna"
FLASHINFER = f"--no-deps flashinfer-python==0.7.2.post1 nvidia-ml-py tabulate einops click {COMMON}"
SGLANG = f"--no-deps sglang==0.5.23 triton==3.9.0 orjson pybase64 starlette msgspec pyzmq ipython traitlets {COMMON}"
OURS = {"distribution": "accel-ops", "cache_variable": "ACCEL_CACHE_DIR", "is_ours": True}
CONTENDERS = (
    Contender("accel-ops load()", "accel_builder.py", **OURS),
    Contender("accel-ops engine", "accel_engine.py", **OURS),
    Contender("accel-ops run", "torch_cpp_extension.py", is_run_by_accel_ops=True, **OURS),
    Contender("torch 2.13 cpp_extension", "torch_cpp_extension.py", "torch", "TORCH_EXTENSIONS_DIR"),
    Contender(
        "torch 2.15 cpp_extension",
        "torch_cpp_extension.py",
        "torch",
        "TORCH_EXTENSIONS_DIR",
        "torch==2.15.0 ninja setuptools",
    ),
    Contender("DeepSpeed", "deepspeed_builder.py", "deepspeed", "TORCH_EXTENSIONS_DIR", "deepspeed==0.19.8"),
    Contender("tvm-ffi", "tvm_ffi_load.py", "apache-tvm-ffi", "TVM_FFI_CACHE_DIR"),
    Contender(
        "FlashInfer JitSpec",
        "flashinfer_jit.py",
        "flashinfer-python",
        "FLASHINFER_WORKSPACE_BASE",
        FLASHINFER,
        # It links every op with CUDA's libraries; empty ones stand in for them.
        settings=(
            ("FLASHINFER_CUDA_ARCH_LIST", "9.0a"),
            ("LIBRARY_PATH", "{root}/stand_ins"),
            ("LD_LIBRARY_PATH", "{root}/stand_ins"),
        ),
    ),
    Contender("SGLang load_jit", "sglang_jit.py", "sglang", "SGLANG_JIT_CACHE_DIR", SGLANG),
    Contender(
        "Inductor C++",
        "python_function.py",
        "torch",
        "TORCHINDUCTOR_CACHE_DIR",
        is_native=False,
        settings=(("TORTURE_MODULE", "op_inductor"),),
    ),
    Contender(
        "Triton",
        "python_function.py",
        "triton",
        "TRITON_CACHE_DIR",
        "triton==3.9.0",
        is_native=False,
        settings=(("TORTURE_MODULE", "op_triton"),),
    ),
    Contender(
        "Numba",
        "python_function.py",
        "numba",
        "NUMBA_CACHE_DIR",
        "numba==0.68.1",
        is_native=False,
        settings=(("TORTURE_MODULE", "op_numba"),),
    ),
)


def named(names: list[str]) -> list[Contender]:
    """The contenders whose names contain one of ``names``; all for an empty list."""
    found = [one for one in CONTENDERS if not names or any(name.lower() in one.name.lower() for name in names)]
    if not found:
        raise SystemExit(
            f"No contender is named {' or '.join(names)}. Choose from: {', '.join(c.name for c in CONTENDERS)}."
        )
    return found


@contextlib.contextmanager
def switchable_torch(root: Path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """An interpreter, and a function that replaces its torch in place by that of another environment.

    The torch of this environment is called ``old``, that of the contender with a later one ``new``.
    """
    newer = next(one for one in CONTENDERS if one.name == "torch 2.15 cpp_extension").python()
    directory = root / "environment"
    python = _peers.make_environment(directory)
    packages = next(directory.glob("lib/python*/site-packages"))
    places = {
        "old": sysconfig.get_path("purelib"),
        "new": str(next(newer.parents[1].glob("lib/python*/site-packages"))),
    }
    installed = root / "installed"
    # Its own link comes first, then this environment's packages.
    (packages / "installed.pth").write_text(f"{installed}\n")

    def switch(name: str) -> None:
        installed.unlink(missing_ok=True)
        installed.symlink_to(places[name])

    yield python, switch


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of compilers and caches."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TERM", "SSL_CERT_FILE")
    return {name: os.environ[name] for name in kept if name in os.environ}
