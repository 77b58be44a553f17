"""The build plan: everything that makes an op's binary, as plain data.

JIT and prebuild take the same plan from the same pure function, :func:`make_plan`, which asks
the builder's overridable methods and adds what the binding style needs. A plan holds no
command line and no path of torch, Python or a compiler: the toolchain adds those when it turns
the plan into commands, the fingerprint counts them by identity.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from op_builder import paths
from op_builder.errors import AccelError

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder


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


_SUFFIXES = {
    ".cpp": Language.CXX,
    ".cc": Language.CXX,
    ".cxx": Language.CXX,
    ".c": Language.CXX,
    ".cu": Language.CUDA,
}

# The function by which a binary of Binding.STABLE registers its ops; see torch_c/library.h.
ENTRY_POINT = "accel_register_library"

# By this name a manifest's needs tell the SYCL runtime that a binary is linked with: {"libsycl.so": "9"}.
SYCL_LIBRARY = "libsycl.so"

# The source of every op with kernel texts that starts them, whatever they are.
SYCL_HOST_RUNTIME = "kernels_sycl/host/runtime.cpp"

# The oldest torch whose stable C ABI the binaries of Binding.STABLE use: 2.10, as torch encodes it.
STABLE_TORCH_TARGET = 0x020A000000000000


@dataclass(frozen=True)
class Source:
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


@dataclass(frozen=True)
class SyclPlan:
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


@dataclass(frozen=True)
class ForeignLibrary:
    """Somebody else's library that an op is linked with; its builder opens it by its path before the op.

    Its headers and its file count in the key through ``version``, so that the key names no place of this machine.

    Attributes:
        name: as the linker takes it, ``ccl``.
        version: whatever tells its releases apart.
        include_dir: of its headers.
        library: its file, ``libccl.so``; what it needs itself is found by the system, or lies beside it.
    """

    name: str
    version: str
    include_dir: Path
    library: Path


@dataclass(frozen=True)
class BuildPlan:
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


def make_plan(builder: OpBuilder) -> BuildPlan:
    """The plan of a builder: pure, in that it compiles, probes and writes nothing.

    Raises:
        SourceNotFoundError: a source or include directory does not exist.
        AccelError: a source's suffix is no known language, or there are no sources.
    """
    owner = type(builder)
    files = [_source(name, builder) for name in _clean(builder.sources())]
    texts = [_text_source(name, text, builder) for name, text in builder.source_texts().items()]
    sources = (*files, *texts)
    if not sources:
        raise AccelError(
            f"{owner.__qualname__} names no file to compile and gives no text.",
            "Return at least one source from sources() or source_texts().",
        )
    stable = builder.BINDING is Binding.STABLE
    module_name = builder.absolute_name().rpartition(".")[2]
    standard, defines = _stable_recipe() if stable else _torch_recipe(module_name, builder)
    warnings = _STABLE_HOST_FLAGS if stable else ()
    nvcc_flags: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    if any(source.language is Language.CUDA for source in sources):
        host = tuple(f"-Xcompiler={flag}" for flag in warnings)
        archs = tuple(builder.cuda_archs())
        nvcc_flags = (standard, "-O3", *host, *defines, *_clean(builder.nvcc_args()))
        if builder.enable_bf16 and not stable:
            # What extension sources ask for, and torch's own flags for nvcc would forbid.
            defines = (*defines, "-DBF16_AVAILABLE")
            nvcc_flags = (*nvcc_flags, "-DBF16_AVAILABLE", *_NVCC_BF16_FLAGS)
    include_dirs = [path for name in _clean(builder.include_paths()) for path in paths.resolve_all(name, owner)]
    plan = BuildPlan(
        op=builder.name,
        module_name=module_name,
        binding=builder.BINDING,
        sources=sources,
        include_dirs=tuple(dict.fromkeys(include_dirs)),
        cxx_flags=(standard, _HOST_OPTIMIZATION, *warnings, *defines, *_clean(builder.cxx_args())),
        nvcc_flags=nvcc_flags,
        link_flags=(*_clean(builder.extra_ldflags()), *map(_library_flag, _clean(builder.libraries_args()))),
        cuda_archs=archs,
    )
    return builder.finish_plan(plan)


def _source(name: str, builder: OpBuilder) -> Source:
    owner = type(builder)
    path = paths.resolve(name, owner)
    flags = tuple(_clean(builder.source_args(name)))
    return Source(path, paths.label(path, owner), _language(path, owner), flags)


def _text_source(name: str, text: str, builder: OpBuilder) -> Source:
    path = Path(name)
    if path.name != name:
        raise AccelError(
            f"{type(builder).__qualname__}.source_texts() names {name!r}, which is no plain file name.",
            "Use a name without directories.",
        )
    flags = tuple(_clean(builder.source_args(name)))
    return Source(path, name, _language(path, type(builder)), flags, text)


def _language(path: Path, owner: type) -> Language:
    language = _SUFFIXES.get(path.suffix)
    if language is None:
        raise AccelError(
            f"{owner.__qualname__} names the source {str(path)!r}, whose suffix {path.suffix!r} is no known language.",
            f"Use one of {', '.join(sorted(_SUFFIXES))}.",
        )
    return language


# -fno-math-errno and -fno-trapping-math change no result; they let sqrt and selects vectorise.
# Contraction stays off so that every instruction set rounds alike unless a kernel asks for fma.
_STABLE_HOST_FLAGS = (
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
)


_NVCC_BF16_FLAGS = (
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)


# Our kernels are written in vectors, so -O3 would find nothing more in them and take half as long again; on
# torch/extension.h it takes a tenth more. A builder's own -O comes later and wins.
_HOST_OPTIMIZATION = "-O2"


def _stable_recipe() -> tuple[str, tuple[str, ...]]:
    return "-std=c++17", (f"-DTORCH_TARGET_VERSION={STABLE_TORCH_TARGET:#018x}",)


def _torch_recipe(module_name: str, builder: OpBuilder) -> tuple[str, tuple[str, ...]]:
    # The standard that torch's own headers want follows torch's release; it is part of the
    # flags, so it is part of the key. A builder's own -std comes later and wins.
    standard = "-std=c++20" if builder.torch_version() >= (2, 12) else "-std=c++17"
    return standard, (f"-DTORCH_EXTENSION_NAME={module_name}", "-DTORCH_API_INCLUDE_EXTENSION_H")


def _library_flag(entry: str) -> str:
    """``-lname`` of a bare library name; flags and paths stay as they are."""
    return entry if entry.startswith("-") or "/" in entry else f"-l{entry}"


def _clean(items: Iterable[str | Path]) -> list[str]:
    """Texts without empty entries, each flag as one item (builders return lists with blanks)."""
    return [str(item) for item in items if str(item).strip()]
