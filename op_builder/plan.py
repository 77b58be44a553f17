"""The build plan: everything that makes an op's binary, as plain data.

JIT and prebuild take the same plan from the same pure function, :func:`op_builder.builder.recipe.make_plan`.
A plan holds no command line and no path of torch, Python or a compiler: the engine adds those when it turns
the plan into commands, the key counts them by identity.

Values are named tuples, in modules without ``from __future__ import annotations``, because a warm load imports them:
see docs/internals/debugging.md.
"""

import enum
from pathlib import Path
from typing import NamedTuple


class Binding(enum.Enum):
    """How an op's binary meets Python."""

    STABLE = "stable"
    """LibTorch Stable ABI, registered through ``torch_c/library.h`` or ``bindings/stable_library.h``: any
    torch >= 2.10, any CPython; what the project's own ops use."""

    TORCH = "torch"
    """Anything that includes torch's C++ headers: a pybind11 or CPython module, a
    ``TORCH_LIBRARY``, a ``STABLE_TORCH_LIBRARY``; which of them is found in the built file."""


class Language(enum.Enum):
    """The language of one source file, which decides its compiler."""

    CXX = "c++"
    CUDA = "cuda"
    SYCL = "sycl"
    """C++ whose kernels oneAPI's compiler compiles with it, ahead of time."""


# The function by which a binary of Binding.STABLE registers its ops; see torch_c/library.h.
ENTRY_POINT = "accel_register_library"

# The name in a manifest's needs of the SYCL runtime that a binary is linked with: {"libsycl.so": "9"}.
SYCL_LIBRARY = "libsycl.so"

# The source of every op with kernel texts that starts them, whatever they are.
SYCL_HOST_RUNTIME = "kernels_sycl/host/runtime.cpp"


class Source(NamedTuple):
    """One file to compile.

    Attributes:
        path: where it lies; of a source given as text, the bare name under which it is compiled.
        label: its machine-independent name, used in keys and messages.
        language: decides its compiler.
        flags: for this file alone, after all others.
        text: its content, where it is no file: written into the build's own directory.
    """

    path: Path
    label: str
    language: Language
    flags: tuple[str, ...] = ()
    text: str | None = None


class SyclPlan(NamedTuple):
    """What of a plan is SYCL's own.

    Attributes:
        toolchain: as :class:`op_builder.toolchains.sycl.SyclToolchain` names it.
        devices: Intel GPUs that kernels are compiled for ahead of time, as icpx calls them.
        kernels: texts that the compiler reads before each source that names kernels, where they are compiled ahead.
        flags: of the compiler that compiles kernels ahead, which the host compiler behind it does not get.
    """

    toolchain: str
    devices: tuple[str, ...] = ()
    kernels: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()

    def texts_before(self, source: Source) -> tuple[Path, ...]:
        """The texts that the compiler reads before ``source``."""
        return () if source.label == SYCL_HOST_RUNTIME else self.kernels


class ForeignLibrary(NamedTuple):
    """Somebody else's library that an op is linked with; its builder opens it by its path before the op.

    Its headers and its file count in the key through ``version``, so that the key names no place of this machine.

    Attributes:
        name: as the linker takes it, ``ccl``.
        version: differs between its releases.
        include_dir: of its headers.
        library: its file, ``libccl.so``; what it needs itself is found by the system, or in its directory.
    """

    name: str
    version: str
    include_dir: Path
    library: Path


class BuildPlan(NamedTuple):
    """What to compile and link into one binary.

    Attributes:
        op: the op's name, as in ``OpBuilder.NAME``.
        module_name: name of the built file and, for a Python module, of its init function.
        binding: how the binary meets Python.
        sources: files to compile, each to one object.
        include_dirs: the op's own include directories, in order.
        cxx_flags: flags of the host C++ compiler, defines included.
        nvcc_flags: flags of nvcc, defines and ``-gencode`` included.
        link_flags: flags of the link, libraries included.
        cuda_archs: CUDA architectures compiled for, as ``9.0a+PTX``; empty without CUDA sources.
        sycl: what is SYCL's own, None for an op without it.
        libraries: of others, that the binary is linked with and does not carry.
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

    @property
    def uses_cuda(self) -> bool:
        return any(source.language is Language.CUDA for source in self.sources)

    @property
    def artifact_name(self) -> str:
        return f"{self.module_name}.so"
