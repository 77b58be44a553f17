"""Find the CUDA toolkit without torch.

torch derives CUDA_HOME from the location of ``nvcc`` on PATH, which is wrong if that is a wrapper
outside the toolkit. On a CPU build of torch it is None, although CUDA sources can be compiled there.
Therefore nvcc is run: ``nvcc --dryrun`` prints the directory of its toolkit as ``TOP=``.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder.errors import MissingCUDAException, ToolchainError
from op_builder.system.memo import Memo
from op_builder.system.process import run
from op_builder.system.records import Schema, is_count, is_text, list_of
from op_builder.toolchains.compiler_probe import run_by_script

_are_counts = list_of(is_count)
_ANSWER: Schema = {
    "home": is_text,
    "version": lambda value: _are_counts(value) and len(value) == 2,
    "release": is_text,
}
_USUAL_HOME = Path("/usr/local/cuda")


@dataclass(frozen=True)
class CudaToolkit:
    """A CUDA toolkit that was found.

    Attributes:
        nvcc: the command that starts the compiler; may be a wrapper.
        home: the toolkit's own directory, the one with ``include/``.
        version: (major, minor).
        release: nvcc's own version text, ``V13.0.88``.
    """

    nvcc: str
    home: Path
    version: tuple[int, int]
    release: str

    @property
    def identity(self) -> str:
        return f"{os.path.realpath(self.nvcc)} | {self.release}"

    @property
    def library_dir(self) -> Path:
        for name in ("lib64", "lib", "targets/x86_64-linux/lib"):
            if os.path.isdir(self.home / name):
                return self.home / name
        return self.home / "lib64"

    @property
    def runtime_flag(self) -> str:
        """The linker's flag for the shared runtime. A toolkit from wheels has only ``libcudart.so.13``."""
        name = f"libcudart.so.{self.version[0]}"
        is_bare = not os.path.exists(self.library_dir / "libcudart.so") and os.path.exists(self.library_dir / name)
        return f"-l:{name}" if is_bare else "-lcudart"


def find_cuda(memo: Memo) -> CudaToolkit:
    """The toolkit of ``$CUDA_HOME``, ``$CUDA_PATH``, nvcc on PATH, or /usr/local/cuda.

    Raises:
        MissingCUDAException: there is no nvcc in any of them.
        ToolchainError: nvcc exists but does not work.
    """
    nvcc = _find_nvcc()

    def work_out() -> tuple[dict[str, Any], list[str]]:
        version = run([nvcc, "--version"])
        found = re.search(r"release (\d+)\.(\d+).*?(V[\d.]+)", version.output)
        if not version.ok or found is None:
            raise ToolchainError(
                f"{nvcc} --version does not answer as nvcc does: {(version.errors or version.output).strip()[:200]!r}.",
                "Set CUDA_HOME to a working CUDA toolkit.",
            )
        dry = run([nvcc, "--dryrun", "probe.cu"])
        top = re.search(r"^#\$ TOP=(.+)$", dry.errors + dry.output, re.MULTILINE)
        home = os.path.realpath(top[1].strip() if top else Path(nvcc).parent.parent)
        proper = os.path.realpath(Path(home) / "bin" / "nvcc")
        fact = {"home": home, "version": [int(found[1]), int(found[2])], "release": found[3]}
        return fact, [os.path.realpath(nvcc), proper, *run_by_script(nvcc)]

    fact = memo.get(f"nvcc {nvcc}", _ANSWER, work_out)
    major, minor = fact["version"]
    return CudaToolkit(nvcc, Path(fact["home"]), (major, minor), fact["release"])


def _find_nvcc() -> str:
    for variable in (env.CUDA_HOME, env.CUDA_PATH):
        home = variable.get()
        if home is not None:
            nvcc = home / "bin" / "nvcc"
            if not os.path.exists(nvcc):  # Path.exists() raises where a directory may not be read
                raise MissingCUDAException(
                    f"{variable.name}={str(home)!r} has no bin/nvcc, or it may not be read.",
                    f"Correct or unset {variable.name}.",
                )
            return str(nvcc)
    found = shutil.which("nvcc") or shutil.which("nvcc", path=str(_USUAL_HOME / "bin"))
    if found is None:
        raise MissingCUDAException(
            f"No CUDA toolkit: CUDA_HOME and CUDA_PATH are unset, nvcc is not on PATH nor in {_USUAL_HOME / 'bin'}.",
            "Install the CUDA toolkit, or set CUDA_HOME to it.",
        )
    return found
