"""Find the CUDA toolkit without torch.

torch derives CUDA_HOME from the location of ``nvcc`` on PATH, which is wrong if that is a wrapper
outside the toolkit. On a CPU build of torch it is None, although CUDA sources can be compiled there.
Therefore nvcc is run: ``nvcc --dryrun`` prints the directory of its toolkit as ``TOP=``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder.errors import CUDAMismatchException, MissingCUDAException, ToolchainError
from op_builder.system.process import run
from op_builder.system.records import Memo, Schema, are_texts, is_count, is_text, list_of
from op_builder.system.torch_install import parse_release, torch_install
from op_builder.toolchains.compiler_probe import digest_of_programs, wrapper_facts

CUDA_TORCH_REMEDY = "Install a CUDA build of torch: `pip install --force-reinstall torch`."

_are_counts = list_of(is_count)
_ANSWER: Schema = {
    "home": is_text,
    "version": lambda value: _are_counts(value) and len(value) == 2,
    "release": is_text,
    "archs": _are_counts,
    "variables": are_texts,
    "digest": is_text,
}
USUAL_HOME = Path("/usr/local/cuda")
# What nvcc runs and reads in its toolkit, apart from headers and libraries.
_PARTS = (
    *("nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc", "bin/nvcc.profile"),
    *("bin/cudafe++", "bin/ptxas", "bin/fatbinary", "bin/nvlink"),
)
_WHEELS = "cccl,crt,cudart,nvcc,nvvm"  # extras of the distribution cuda-toolkit, which torch pins to its version


@dataclass(frozen=True)
class CudaToolkit:
    """A CUDA toolkit that was found.

    Attributes:
        nvcc: the command that starts the compiler; may be a wrapper.
        home: the toolkit's own directory, the one with ``include/``.
        version: (major, minor).
        release: nvcc's own version text, ``V13.0.88``.
        archs: the architectures that it compiles for, as ``(9, 0)``; empty where nvcc does not list them.
        variables: the variables that its wrapper scripts name.
        digest: of the contents of its programs.
    """

    nvcc: str
    home: Path
    version: tuple[int, int]
    release: str
    archs: tuple[tuple[int, int], ...] = ()
    variables: tuple[str, ...] = ()
    digest: str = ""

    @property
    def identity(self) -> str:
        return " | ".join(filter(None, [os.path.realpath(self.nvcc), self.release, self.digest]))

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


def find_cuda(memo: Memo, *, for_torch: bool = True) -> CudaToolkit:
    """The toolkit of ``$CUDA_HOME`` or ``$CUDA_PATH``, of nvcc on PATH or in /usr/local/cuda, or of NVIDIA's wheels.

    The wheels' toolkit is preferred to one found on the system if it alone has torch's CUDA version.

    Args:
        for_torch: whether torch's CUDA version counts; torch is not imported otherwise.

    Raises:
        MissingCUDAException: there is no nvcc in any of them.
        ToolchainError: nvcc exists but does not work.
    """
    named = _named_nvcc()
    if named is not None:
        return _toolkit(named, memo)
    system = shutil.which("nvcc") or shutil.which("nvcc", path=str(USUAL_HOME / "bin"))
    toolkit = None if system is None else _toolkit(system, memo)
    built = torch_install().cuda if for_torch else None
    wanted = 0 if built is None else parse_release(built)[0]
    if toolkit is not None and wanted in (0, toolkit.version[0]):
        return toolkit
    wheel_nvccs = _wheel_nvccs()
    if wanted in wheel_nvccs:
        return _toolkit(wheel_nvccs[wanted], memo)
    if toolkit is not None:
        return toolkit
    if wheel_nvccs:
        return _toolkit(wheel_nvccs[max(wheel_nvccs)], memo)
    if 0 < wanted < 13:
        remedy = f"Install the CUDA toolkit {built} and set CUDA_HOME to it. NVIDIA's wheels have nvcc since CUDA 13."
    else:
        version = "" if built is None else f"=={built}.*"
        remedy = (
            "Install the CUDA toolkit and set CUDA_HOME to it. It is on PyPI, too: "
            f"`pip install 'cuda-toolkit[{_WHEELS}]{version}'`."
        )
    raise MissingCUDAException(
        "No CUDA toolkit: CUDA_HOME and CUDA_PATH are unset, and nvcc is not on PATH, "
        f"in {USUAL_HOME / 'bin'} or in a wheel.",
        remedy,
    )


def _wheel_nvccs() -> dict[int, str]:
    """The nvcc of each CUDA major version that NVIDIA's wheels have installed, such as ``nvidia/cu13/bin/nvcc``."""
    found: dict[int, str] = {}
    for directory in filter(None, sys.path):
        for nvcc in Path(directory).glob("nvidia/cu[0-9][0-9]/bin/nvcc"):
            found.setdefault(int(nvcc.parts[-3].removeprefix("cu")), str(nvcc))
    return found


def _toolkit(nvcc: str, memo: Memo) -> CudaToolkit:
    def compute() -> tuple[dict[str, Any], list[str]]:
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
        real_nvcc = os.path.realpath(Path(home) / "bin" / "nvcc")
        named, variables = wrapper_facts([nvcc])
        listed = run([nvcc, "--list-gpu-arch"]).output  # since CUDA 11
        files = [os.path.realpath(nvcc), real_nvcc, *(os.path.join(home, part) for part in _PARTS), *named]
        fact = {
            "home": home,
            "version": [int(found[1]), int(found[2])],
            "release": found[3],
            "archs": [int(arch) for arch in re.findall(r"^compute_(\d+)$", listed, re.MULTILINE)],  # 90 is 9.0
            "variables": variables,
            "digest": digest_of_programs(files),
        }
        return fact, files

    fact = memo.get(f"nvcc {nvcc}", _ANSWER, compute, is_program=True)
    major, minor = fact["version"]
    archs = tuple(divmod(arch, 10) for arch in fact["archs"])
    home, variables = Path(fact["home"]), tuple(fact["variables"])
    return CudaToolkit(nvcc, home, (major, minor), fact["release"], archs, variables, fact["digest"])


def _named_nvcc() -> str | None:
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
    return None


def require_same_cuda(toolkit: CudaToolkit, prefix: str = "") -> None:
    """Raise a CUDAMismatchException unless torch was built with the toolkit's major version of CUDA.

    Args:
        prefix: the beginning of the message.
    """
    install = torch_install()
    if install.cuda is None:
        raise CUDAMismatchException(f"{prefix}torch {install.version} is a build without CUDA.", CUDA_TORCH_REMEDY)
    if parse_release(install.cuda)[0] != toolkit.version[0]:
        found = ".".join(map(str, toolkit.version))
        raise CUDAMismatchException(
            f"{prefix}the CUDA toolkit is {found}, torch was built with CUDA {install.cuda}.",
            f"Install a CUDA {install.cuda} toolkit and set CUDA_HOME to it, or a torch built for CUDA "
            f"{toolkit.version[0]}.",
        )
