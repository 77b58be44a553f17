"""The build plan: all data that determine an op's binary.

JIT and prebuild get the plan from the same pure function, :func:`op_builder.recipe.plan_of`. A plan contains
no command line and no path of torch, Python or a compiler: the engine adds those when it makes commands from the plan,
and the key contains their identity.

Values are named tuples, in modules without ``from __future__ import annotations``, because a warm load imports them:
see docs/internals/debugging.md.
"""

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from op_builder.system.records import Memo
    from op_builder.system.target import Target


class Binding(enum.Enum):
    """How an op's binary registers its functions with Python.

    Attributes:
        STABLE: the LibTorch Stable ABI, through ``torch_c/library.h`` or ``bindings/stable_library.h``; the binary fits
            every torch >= 2.10 and every CPython. This project's ops use it.
        TORCH: a pybind11 or CPython module, a ``TORCH_LIBRARY`` or a ``STABLE_TORCH_LIBRARY``; the engine detects which
            one in the built file.
        LIBRARY: as ``TORCH``; a file with neither module nor ops is also accepted, and opened by ctypes.
        TVM_FFI: functions that ``TVM_FFI_DLL_EXPORT_TYPED_FUNC`` of apache-tvm-ffi exports; the binary uses neither
            torch nor Python, and ``load()`` returns a ``tvm_ffi.Module``.
        PYTHON: a CPython module without torch, such as those of nanobind and pybind11.
        C: a library for ``ctypes``, which uses neither torch nor Python.
    """

    STABLE = "stable"
    TORCH = "torch"
    LIBRARY = "library"
    TVM_FFI = "tvm_ffi"
    PYTHON = "python"
    C = "c"

    @property
    def uses_torch(self) -> bool:
        """Whether the binary is compiled with torch's headers and needs its libraries."""
        return self in (Binding.STABLE, Binding.TORCH, Binding.LIBRARY)

    @property
    def uses_torch_cxx(self) -> bool:
        """Whether the binary is bound to one release of torch."""
        return self in (Binding.TORCH, Binding.LIBRARY)

    @property
    def uses_python(self) -> bool:
        """Whether the binary is bound to the ABI of one Python."""
        return self.uses_torch_cxx or self is Binding.PYTHON


class Language(enum.Enum):
    """The language of a source file, which determines its compiler."""

    CXX = "c++"
    C = "c"
    ASSEMBLER = "assembler"
    """Assembler text, which the C++ compiler's driver preprocesses if the file's suffix is ``.S``."""
    CUDA = "cuda"
    SYCL = "sycl"
    """C++ with kernels that oneAPI's compiler compiles ahead of time."""


# The function in a binary of Binding.STABLE that registers its ops; see torch_c/library.h.
ENTRY_POINT = "accel_register_library"

# The key of the SYCL runtime in a manifest's needs: {"libsycl.so": "9"}.
SYCL_LIBRARY = "libsycl.so"

# The source that launches kernels, part of every op with kernel files.
SYCL_HOST_RUNTIME = "kernels_sycl/host/launch.cpp"


class Source(NamedTuple):
    """One file to compile.

    Attributes:
        path: the file; for text without a file, the name under which it is compiled.
        label: a name that is the same on every machine, for keys and messages.
        language: determines its compiler.
        flags: for this file only, after all others.
        text: the content of a source without a file.
    """

    path: Path
    label: str
    language: Language
    flags: tuple[str, ...] = ()
    text: str | None = None


class SyclPlan(NamedTuple):
    """The SYCL part of a plan.

    Attributes:
        toolchain: a value of :class:`op_builder.toolchains.sycl.SyclToolchain`.
        devices: Intel GPUs to compile kernels for ahead of time, in icpx's names.
        kernels: files that the compiler reads before each source that names kernels, if it compiles ahead of time.
        flags: for the kernel compiler, and not for the host compiler.
    """

    toolchain: str
    devices: tuple[str, ...] = ()
    kernels: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()

    def texts_before(self, source: Source) -> tuple[Path, ...]:
        """The kernel files that the compiler reads before ``source``."""
        return () if source.label == SYCL_HOST_RUNTIME else self.kernels


class ForeignLibrary(NamedTuple):
    """A third-party library that an op is linked with. The op's builder opens it by path before the op.

    The key contains only ``version``, so that it does not depend on paths.

    Attributes:
        name: its name for the linker, ``ccl``.
        version: differs between its releases.
        include_dir: the directory of its headers.
        library: its file, ``libccl.so``; its dependencies are found by the system or in its directory.
    """

    name: str
    version: str
    include_dir: Path
    library: Path


class PlanFacts(NamedTuple):
    """What a plan depends on in addition to its op.

    Attributes:
        memo: remembered facts about tools.
        target: the platform to build for; None for this machine.
        cuda_archs: CUDA architectures to plan for, of an existing binary; None to detect them.
        namespace: torch namespace in which the library registers its ops when it is opened; None for a library that
            only ``load()`` opens.
    """

    memo: "Memo"
    target: "Target | None" = None
    cuda_archs: tuple[str, ...] | None = None
    namespace: str | None = None


class BuildPlan(NamedTuple):
    """The files and flags of one binary.

    Attributes:
        op: the op's name, as in ``OpBuilder.NAME``.
        module_name: name of the built file and, for a Python module, of its init function.
        binding: how the binary registers with Python.
        sources: files to compile, each to one object.
        include_dirs: the op's own include directories, in order.
        cxx_flags: flags for the host C++ compiler, with defines.
        nvcc_flags: flags for nvcc, with defines and without ``-gencode`` for ``cuda_archs``.
        link_flags: flags for the linker, with libraries.
        cuda_archs: target CUDA architectures, as ``9.0a+PTX``; empty without CUDA sources.
        sycl: the SYCL part; None for an op without SYCL.
        libraries: third-party libraries that the binary is linked with.
        target: the platform to build for; None for this machine.
        missing_dirs: named include directories that do not exist, which are ignored.
    """

    op: str
    module_name: str
    binding: Binding
    sources: tuple[Source, ...]
    include_dirs: tuple[Path, ...]
    cxx_flags: tuple[str, ...]
    nvcc_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    cuda_archs: tuple[str, ...] = ()
    sycl: SyclPlan | None = None
    libraries: tuple[ForeignLibrary, ...] = ()
    target: "Target | None" = None
    missing_dirs: tuple[str, ...] = ()

    @property
    def uses_cuda(self) -> bool:
        return any(source.language is Language.CUDA for source in self.sources)

    @property
    def system(self) -> str:
        """The system that the binary is for, as ``sys.platform``."""
        return sys.platform if self.target is None else self.target.system

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """The flags of all compilers."""
        of_sources = (flag for source in self.sources for flag in source.flags)
        return (*self.cxx_flags, *self.nvcc_flags, *(self.sycl.flags if self.sycl is not None else ()), *of_sources)

    @property
    def artifact_name(self) -> str:
        return f"{self.module_name}.so"
