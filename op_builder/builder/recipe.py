"""From a builder to its plan: the values of the builder's methods, and the flags of its binding style."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from op_builder import paths
from op_builder.errors import AccelError, ArgumentError, IncompatibleOpError
from op_builder.plan import ENTRY_POINT, Binding, BuildPlan, ForeignLibrary, Language, Source
from op_builder.toolchains.flags import check_words, checked_flags, without_older_standards

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder

SUFFIXES = {
    ".cpp": Language.CXX,
    ".cc": Language.CXX,
    ".cxx": Language.CXX,
    ".c++": Language.CXX,
    ".C": Language.CXX,
    ".CPP": Language.CXX,
    ".cp": Language.CXX,
    ".S": Language.ASSEMBLER,
    ".s": Language.ASSEMBLER,
    ".c": Language.C,
    ".cu": Language.CUDA,
}

_LONGEST_NAME = 128  # file systems limit names to 255 bytes, and the name is part of longer ones
_SEPARATE_VALUE = ("-I", "-isystem", "-iquote", "-idirafter", "-include", "-D", "-U", "-L", "-l", "-gencode")

# Binaries of Binding.STABLE use the stable C ABI of torch 2.10, in torch's encoding.
STABLE_TORCH_TARGET = 0x020A000000000000


# Throws, as torch's own libraries do, for example if the namespace exists.
_NAMESPACE_TEXT = f"""#include <cstddef>
#include <stdexcept>
#include <string>

extern "C" __attribute__((visibility("default"))) int {ENTRY_POINT}(const char*, char*, std::size_t);

[[maybe_unused]] static const bool registered = [] {{
  char error[1024] = "";
  if ({ENTRY_POINT}("NAMESPACE", error, sizeof error) != 0) {{
    throw std::runtime_error(std::string("The namespace NAMESPACE cannot be registered: ") + error);
  }}
  return true;
}}();
"""


def make_plan(builder: OpBuilder) -> BuildPlan:
    """The plan of a builder. Compiles, probes and writes nothing.

    Raises:
        SourceNotFoundError: a source does not exist.
        ArgumentError: a method returns a value of a wrong type, a source's suffix is unknown, or there are no sources.
        IncompatibleOpError: a method of the builder raises another error, for example because a package is missing.
    """
    try:
        return _plan_of(builder)
    except AccelError:
        raise
    except Exception as error:  # another package's builder may raise anything
        name = error.name if isinstance(error, ImportError) else None
        cure = "Provide what it needs" if name is None else f"Install the package that provides {name!r}"
        text = str(error).rstrip(".")
        raise IncompatibleOpError(
            f"Op '{builder.name}' cannot be built: its builder fails: {type(error).__name__}: {text}.",
            f"{cure}, or report this to the author of {type(builder).__module__}.",
        ) from error


def _plan_of(builder: OpBuilder) -> BuildPlan:
    owner = type(builder)
    where = f"{owner.__qualname__}."
    check_op_name(builder.name, f"{where}name")
    files = [_source(name, builder) for name in text_list(builder.sources(), f"{where}sources()")]
    texts = [_text_source(name, text, builder) for name, text in builder.source_texts().items()]
    if builder.fixed_namespace is not None:
        texts.append(_namespace_source(builder.fixed_namespace, builder))
    sources = (*files, *texts)
    if not sources:
        raise ArgumentError(
            f"{owner.__qualname__} has no sources.",
            "Return at least one source from sources() or source_texts().",
        )
    stable = builder.BINDING is Binding.STABLE
    module_name = builder.absolute_name().rpartition(".")[2]
    check_op_name(module_name, f"the last part of {where}absolute_name()")
    standard, defines = _common_flags(module_name, builder)
    host_flags = _STABLE_HOST_FLAGS if stable else ()
    nvcc_flags: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    if any(source.language is Language.CUDA for source in sources):
        host = tuple(f"-Xcompiler={flag}" for flag in host_flags)
        archs = tuple(builder.cuda_archs())
        own = flag_list(builder.nvcc_args(), f"{where}nvcc_args()")
        nvcc_flags = (standard, "-O3", *host, *defines, *own)
        if builder.enable_bf16 and builder.BINDING.uses_torch_cxx:
            # Existing sources test these defines; torch's flags for nvcc disable bfloat16 operators.
            defines = (*defines, "-DBF16_AVAILABLE")
            nvcc_flags = (*nvcc_flags, "-DBF16_AVAILABLE", *_NVCC_BF16_FLAGS)
    cxx_args = flag_list(builder.cxx_args(), f"{where}cxx_args()")
    names = text_list(builder.include_paths(), f"{where}include_paths()")
    # Like the compilers, ignore a directory that does not exist; the report mentions it.
    include_dirs = [Path(each) for name in names for each in paths.places(name, owner) if os.path.exists(each)]
    link_args = flag_list(builder.extra_ldflags(), f"{where}extra_ldflags()")
    libraries = flag_list(builder.libraries_args(), f"{where}libraries_args()")
    plan = BuildPlan(
        op=builder.name,
        module_name=module_name,
        binding=builder.BINDING,
        sources=sources,
        include_dirs=tuple(dict.fromkeys(include_dirs)),
        cxx_flags=(standard, _HOST_OPTIMIZATION, *host_flags, *defines, *cxx_args),
        nvcc_flags=nvcc_flags,
        link_flags=(*link_args, *map(_library_flag, libraries)),
        cuda_archs=archs,
        libraries=_binding_libraries(builder.BINDING),
        target=builder.target,
    )
    return _normalized(builder.finish_plan(plan), standard)


def missing_include_dirs(builder: OpBuilder) -> list[str]:
    """The names in ``include_paths()`` of which no directory exists."""
    return [name for name in builder.include_paths() if not any(map(os.path.exists, paths.places(name, type(builder))))]


def _normalized(plan: BuildPlan, standard: str) -> BuildPlan:
    """The plan with response files replaced by their words, so that all of the flags count in the key.

    Flags for a C++ standard older than ``standard`` are removed.

    Raises:
        ArgumentError: ninja or the compilers cannot express a flag or a path.
    """

    def normalized(flags: tuple[str, ...], language: Language = Language.CXX) -> tuple[str, ...]:
        words = checked_flags(flags)
        is_cxx = language not in (Language.C, Language.ASSEMBLER)
        return tuple(without_older_standards(plan.op, standard, words) if is_cxx else words)

    sources = tuple(
        source._replace(flags=normalized(source.flags, source.language)) if source.flags else source
        for source in plan.sources
    )
    cxx, nvcc = normalized(plan.cxx_flags), normalized(plan.nvcc_flags)
    link = tuple(checked_flags(plan.link_flags))
    flags = [*cxx, *nvcc, *link, *(flag for source in sources for flag in source.flags)]
    check_words([*flags, *map(str, plan.include_dirs), *(str(source.path) for source in sources)])
    return plan._replace(sources=sources, cxx_flags=cxx, nvcc_flags=nvcc, link_flags=link)


def _source(name: str, builder: OpBuilder) -> Source:
    owner = type(builder)
    path = paths.resolve(name, owner)
    return Source(path, paths.label(path, owner), _language(path, owner), _source_flags(name, builder))


def _text_source(name: str, text: str, builder: OpBuilder) -> Source:
    path = Path(name)
    if path.name != name:
        raise ArgumentError(
            f"{type(builder).__qualname__}.source_texts() names {name!r}, which is not a plain file name.",
            "Use a name without directories.",
        )
    return Source(path, name, _language(path, type(builder)), _source_flags(name, builder), text)


def _namespace_source(namespace: str, builder: OpBuilder) -> Source:
    """A source that registers the op's library in ``namespace`` when the library is opened."""
    check_op_name(namespace, "The namespace")
    if builder.BINDING is not Binding.STABLE:
        raise ArgumentError(
            f"Op '{builder.name}' cannot be given a namespace, because its binding is {builder.BINDING}.",
            "Declare BINDING = Binding.STABLE and define the ops with ACCEL_OP_LIBRARY.",
        )
    name = "accel_namespace.cpp"
    return Source(Path(name), name, Language.CXX, text=_NAMESPACE_TEXT.replace("NAMESPACE", namespace))


def _source_flags(name: str, builder: OpBuilder) -> tuple[str, ...]:
    return tuple(flag_list(builder.source_args(name), f"{type(builder).__qualname__}.source_args({name!r})"))


def _language(path: Path, owner: type) -> Language:
    language = SUFFIXES.get(path.suffix)
    if language is None:
        raise ArgumentError(
            f"The source {str(path)!r} of {owner.__qualname__} has the unknown suffix {path.suffix!r}.",
            f"Use one of {', '.join(sorted(SUFFIXES))}.",
        )
    return language


# -fno-math-errno and -fno-trapping-math change no result and allow sqrt and selects to be vectorized.
# Without contraction, all instruction sets round alike unless a kernel uses fma.
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


# The kernels are written with vectors, so -O3 would gain nothing and take 50 % longer. A builder's own -O comes later
# and wins.
_HOST_OPTIMIZATION = "-O2"


def _common_flags(module_name: str, builder: OpBuilder) -> tuple[str, tuple[str, ...]]:
    """The flag for the C++ standard, and defines."""
    if builder.BINDING is Binding.STABLE:
        return "-std=c++17", (f"-DTORCH_TARGET_VERSION={STABLE_TORCH_TARGET:#018x}",)
    if builder.BINDING is Binding.TVM_FFI:
        return "-std=c++17", ()
    # The C++ standard that torch's headers require depends on its release. A builder's own -std wins where it is newer.
    standard = "-std=c++20" if builder.torch_version() >= (2, 12) else "-std=c++17"
    return standard, (f"-DTORCH_EXTENSION_NAME={module_name}", "-DTORCH_API_INCLUDE_EXTENSION_H")


def _binding_libraries(binding: Binding) -> tuple[ForeignLibrary, ...]:
    if binding is not Binding.TVM_FFI:
        return ()
    from op_builder.toolchains.tvm_ffi import tvm_ffi_library  # most ops do not need it

    return (tvm_ffi_library(),)


def _library_flag(entry: str) -> str:
    """``-lname`` for a bare library name; flags and paths are unchanged."""
    return entry if entry.startswith("-") or "/" in entry else f"-l{entry}"


def check_op_name(name: object, where: str) -> None:
    """Raise an AccelError if ``name`` cannot name an op, its files and its module."""
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier() or len(name) > _LONGEST_NAME:
        raise ArgumentError(
            f"{where} is {name!r}, which is not a valid op name.",
            f"Use ASCII letters, digits and underscores, at most {_LONGEST_NAME} characters, and no digit first.",
        )


def text_list(items: object, where: str) -> list[str]:
    """``items`` as strings, without blank ones.

    Args:
        where: what returned or received the items, for the message.

    Raises:
        ArgumentError: it is not a list of strings or paths.
    """
    is_list = isinstance(items, Iterable) and not isinstance(items, str | bytes | Path | Mapping)
    found = list(items) if is_list else []  # type: ignore[call-overload]
    if not is_list or not all(isinstance(item, str | Path) for item in found):
        raise ArgumentError(f"{where} is {items!r}, which is not a list of strings.", "Use a list of strings.")
    return [text for text in map(str, found) if text.strip()]


class Words(list[str]):
    """Flags that are one word each, even with blanks; :func:`flag_list` does not split them."""


def flag_list(items: object, where: str) -> list[str]:
    """:func:`text_list`, where a string with several flags is split, as torch's extensions do."""
    if isinstance(items, Words):
        return text_list(items, where)
    return [word for text in text_list(items, where) for word in _words(text)]


def _words(flag: str) -> list[str]:
    words = flag.split()
    is_several = len(words) > 1 and (words[0] in _SEPARATE_VALUE or any(word.startswith("-") for word in words[1:]))
    # With quotes, the blanks are part of a value: -DNAME="a -b".
    return words if is_several and not {'"', "'"} & set(flag) else [flag]
