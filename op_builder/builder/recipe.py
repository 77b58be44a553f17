"""From a builder to its plan: asks the builder's overridable methods and adds what the binding style needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from op_builder import paths
from op_builder.errors import AccelError
from op_builder.plan import Binding, BuildPlan, Language, Source
from op_builder.toolchains.flags import check_words, expand_response_files

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder

_SUFFIXES = {
    ".cpp": Language.CXX,
    ".cc": Language.CXX,
    ".cxx": Language.CXX,
    ".c": Language.CXX,
    ".cu": Language.CUDA,
}

# The oldest torch whose stable C ABI the binaries of Binding.STABLE use: 2.10, as torch encodes it.
STABLE_TORCH_TARGET = 0x020A000000000000


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
    return _settled(builder.finish_plan(plan))


def _settled(plan: BuildPlan) -> BuildPlan:
    """The plan with response files replaced by their words, so that all of the flags count in the key.

    Raises:
        AccelError: ninja or the compilers cannot express a flag or a path.
    """
    sources = tuple(
        source._replace(flags=tuple(expand_response_files(source.flags))) if source.flags else source
        for source in plan.sources
    )
    cxx, nvcc, link = map(expand_response_files, (plan.cxx_flags, plan.nvcc_flags, plan.link_flags))
    flags = [*cxx, *nvcc, *link, *(flag for source in sources for flag in source.flags)]
    check_words([*flags, *map(str, plan.include_dirs), *(str(source.path) for source in sources)])
    return plan._replace(sources=sources, cxx_flags=tuple(cxx), nvcc_flags=tuple(nvcc), link_flags=tuple(link))


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
