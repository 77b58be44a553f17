"""Who is tried: how each is installed, which variable moves its cache, and what its op looks like."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
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
        starts_compiler: it starts a C++ compiler, be it for a source of its own.
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
    starts_compiler: bool = True
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
# Without their requirements, which would bring CUDA builds of torch, but with what their modules import.
AIOHTTP = "aiohttp aiohappyeyeballs aiosignal attrs frozenlist multidict propcache yarl"
FLASHINFER = f"--no-deps flashinfer-python==0.7.4 nvidia-ml-py tabulate einops click tqdm {COMMON}"
SGLANG = (
    "--no-deps sglang==0.5.23 triton==3.9.0 orjson pybase64 starlette anyio msgspec pyzmq ipython traitlets tqdm "
    f"pydantic pydantic-core typing-inspection {AIOHTTP} {COMMON}"
)
# ``accel-ops run`` sets this variable for the program; cases with an interpreter of their own start without it.
RUN = (("ACCEL_CPP_EXTENSION", "1"),)
OURS = {"distribution": "accel-ops", "cache_variable": "ACCEL_CACHE_DIR", "is_ours": True}
CONTENDERS = (
    Contender("accel-ops load()", "accel_builder.py", **OURS),
    Contender("accel-ops engine", "accel_engine.py", **OURS),
    Contender("accel-ops run", "torch_cpp_extension.py", is_run_by_accel_ops=True, settings=RUN, **OURS),
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
        starts_compiler=False,
        settings=(("TORTURE_MODULE", "op_triton"),),
    ),
    Contender(
        "Numba",
        "python_function.py",
        "numba",
        "NUMBA_CACHE_DIR",
        "numba==0.68.1",
        is_native=False,
        starts_compiler=False,
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


class Environment:
    """A virtual environment of a case, in which torch or Python is replaced in place.

    It sees the packages of a contender, and after them those of this environment.

    Attributes:
        python: its interpreter.
    """

    def __init__(self, root: Path, contender: Contender) -> None:
        self._python_link, self._packages_link = root / "installed_python", root / "installed_packages"
        self.install_python(Path(sys.base_prefix))
        directory = root / "environment"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = directory / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        (directory / "pyvenv.cfg").write_text(f"home = {self._python_link / 'bin'}\n")
        (directory / "bin").mkdir()
        self.python = directory / "bin" / "python"
        self.python.symlink_to(self._python_link / "bin" / version)
        own = packages_of(contender.python()), packages_of(Path(sys.executable))
        (packages / "installed.pth").write_text("".join(f"{path}\n" for path in (self._packages_link, *own)))
        # For ``accel-ops run``.
        shutil.copy(packages_of(Path(sys.executable)) / "accel_ops.pth", packages)

    def install_python(self, prefix: Path) -> None:
        """Replace Python by the one with this prefix."""
        self._python_link.unlink(missing_ok=True)
        self._python_link.symlink_to(prefix)

    def install_packages(self, packages: Path) -> None:
        """Replace the packages that come first, such as torch, by those of another environment."""
        self._packages_link.unlink(missing_ok=True)
        self._packages_link.symlink_to(packages)


def packages_of(python: Path) -> Path:
    """The directory of packages of a virtual environment."""
    return next(python.parents[1].glob("lib/python*/site-packages"))


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of compilers and caches."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TERM", "SSL_CERT_FILE")
    return {name: os.environ[name] for name in kept if name in os.environ}
