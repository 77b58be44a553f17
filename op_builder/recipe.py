"""What an op's author gives, as one value, and the plan that follows from it.

:func:`plan_of` is the only place that adds the flags of a binding and of this project to those of an op.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from op_builder import paths
from op_builder.errors import ArgumentError
from op_builder.plan import ENTRY_POINT, Binding, BuildPlan, ForeignLibrary, Language, PlanFacts, Source
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.flags import check_words, checked_flags, without_older_standards

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
CUDA_SUFFIX = ".cu"

_LONGEST_NAME = 128  # file systems limit names to 255 bytes, and the name is part of longer ones

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


class Recipe(NamedTuple):
    """The sources and flags of an op, as its author names them.

    Attributes:
        op: the op's name.
        binding: how the binary registers with Python.
        sources: files, absolute, relative to the project's root or to the owner's package.
        texts: sources without a file, by name.
        source_flags: flags for one source, by its name in ``sources`` or ``texts``.
        parts: into how many objects a source is compiled, side by side, by its name in ``sources``; each has another
            ``ACCEL_PART`` defined, from 0. Compiled without it, the source must make all of them.
        include_dirs: named like sources.
        cxx_flags, nvcc_flags, link_flags: added after the common ones; ``link_flags`` end with the libraries.
        cuda_archs: target CUDA architectures; empty without CUDA sources, or for nvcc's default.
        kernels: files with SYCL kernels, named like sources.
        kernel_flags: flags for the compiler of ``kernels``.
        sycl_toolchain: which one compiles the op; empty without SYCL.
        libraries: third-party libraries to link with.
        module_name: of the built file; the op's name if empty.
        owner: the class relative to whose package names are searched; None for this project.
    """

    op: str
    binding: Binding
    sources: tuple[str, ...]
    texts: Mapping[str, str] = {}
    source_flags: Mapping[str, tuple[str, ...]] = {}
    parts: Mapping[str, int] = {}
    include_dirs: tuple[str, ...] = ()
    cxx_flags: tuple[str, ...] = ()
    nvcc_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    cuda_archs: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    kernel_flags: tuple[str, ...] = ()
    sycl_toolchain: str = ""
    libraries: tuple[ForeignLibrary, ...] = ()
    module_name: str = ""
    owner: type | None = None

    @property
    def uses_cuda(self) -> bool:
        return any(name.endswith(CUDA_SUFFIX) for name in (*self.sources, *self.texts))

    @property
    def where(self) -> str:
        """Who gives it, for messages."""
        return self.owner.__qualname__ if self.owner is not None else f"The op '{self.op}'"


def plan_of(recipe: Recipe, facts: PlanFacts) -> BuildPlan:
    """The plan of a recipe. Compiles, probes and writes nothing.

    Raises:
        SourceNotFoundError: a source does not exist.
        ArgumentError: a name, a suffix or a flag is not valid, or there are no sources.
    """
    module_name = recipe.module_name or recipe.op
    check_op_name(recipe.op, f"{recipe.where}.name" if recipe.owner is not None else "The op's name")
    if recipe.module_name:
        check_op_name(recipe.module_name, f"the last part of {recipe.where}.absolute_name()")
    sources = [source for name in recipe.sources for source in _objects(name, recipe)]
    sources += [_text(name, recipe) for name in recipe.texts]
    if facts.namespace is not None:
        sources.append(_namespace_source(facts.namespace, recipe))
    if not sources:
        raise ArgumentError(f"{recipe.where} has no sources.", "Name at least one source or text.")
    host_flags: tuple[str, ...] = ()
    nvcc_flags: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    standard = _standard(recipe.binding)
    if recipe.binding is Binding.STABLE:
        host_flags, defines = _STABLE_HOST_FLAGS, (f"-DTORCH_TARGET_VERSION={STABLE_TORCH_TARGET:#018x}",)
    elif recipe.binding.uses_torch:
        defines = (f"-DTORCH_EXTENSION_NAME={module_name}", "-DTORCH_API_INCLUDE_EXTENSION_H")
    if recipe.uses_cuda:
        host = tuple(f"-Xcompiler={flag}" for flag in host_flags)
        nvcc_flags = (standard, "-O3", *host, *defines, *recipe.nvcc_flags)
        if recipe.binding.uses_torch_cxx:
            from op_builder.toolchains.cuda_archs import all_have_bf16

            if all_have_bf16(recipe.cuda_archs, recipe.nvcc_flags):
                # Existing sources test these defines; torch's flags for nvcc disable bfloat16 operators.
                defines = (*defines, "-DBF16_AVAILABLE")
                nvcc_flags = (*nvcc_flags, "-DBF16_AVAILABLE", *_NVCC_BF16_FLAGS)
    libraries = recipe.libraries
    if recipe.binding is Binding.TVM_FFI:
        from op_builder.toolchains.tvm_ffi import tvm_ffi_library

        libraries = (*libraries, tvm_ffi_library())
    # Like the compilers, ignore a directory that does not exist; the report mentions it.
    found = {name: list(filter(os.path.exists, paths.places(name, recipe.owner))) for name in recipe.include_dirs}
    plan = BuildPlan(
        op=recipe.op,
        module_name=module_name,
        binding=recipe.binding,
        sources=tuple(sources),
        include_dirs=tuple(dict.fromkeys(Path(place) for existing in found.values() for place in existing)),
        cxx_flags=(standard, _HOST_OPTIMIZATION, *host_flags, *defines, *recipe.cxx_flags),
        nvcc_flags=nvcc_flags,
        link_flags=recipe.link_flags,
        cuda_archs=recipe.cuda_archs if recipe.uses_cuda else (),
        libraries=libraries,
        target=facts.target,
        missing_dirs=tuple(name for name, existing in found.items() if not existing),
    )
    if not recipe.sycl_toolchain:
        return plan
    from op_builder.toolchains.sycl_plan import with_sycl

    kernels = [paths.resolve(name, recipe.owner) for name in recipe.kernels]
    return with_sycl(plan, recipe.sycl_toolchain, kernels, recipe.kernel_flags, recipe.owner)


def normalized(recipe: Recipe) -> Recipe:
    """A recipe of other authors, with response files replaced by their words, so that all flags count in the key.

    Flags for a C++ standard older than the one that the binding needs are removed.

    Raises:
        ArgumentError: ninja or the compilers cannot express a flag.
    """
    standard = _standard(recipe.binding)

    def words(flags: tuple[str, ...], *, is_cxx: bool = True) -> tuple[str, ...]:
        found = checked_flags(flags)
        check_words(found)
        return tuple(without_older_standards(recipe.op, standard, found) if is_cxx else found)

    def of_source(name: str, flags: tuple[str, ...]) -> tuple[str, ...]:
        is_cxx = SUFFIXES.get(Path(name).suffix) not in (Language.C, Language.ASSEMBLER)
        return words(flags, is_cxx=is_cxx) if flags else flags

    check_words([*recipe.sources, *recipe.include_dirs])
    return recipe._replace(
        source_flags={name: of_source(name, flags) for name, flags in recipe.source_flags.items()},
        cxx_flags=words(recipe.cxx_flags),
        nvcc_flags=words(recipe.nvcc_flags),
        link_flags=words(recipe.link_flags, is_cxx=False),
        kernel_flags=words(recipe.kernel_flags),
    )


def _objects(name: str, recipe: Recipe) -> list[Source]:
    path = paths.resolve(name, recipe.owner)
    label = paths.label(path, recipe.owner) if os.path.isabs(name) else name
    source = Source(path, label, _language(path, recipe), recipe.source_flags.get(name, ()))
    if name not in recipe.parts:
        return [source]
    return [source._replace(flags=(*source.flags, f"-DACCEL_PART={part}")) for part in range(recipe.parts[name])]


def _text(name: str, recipe: Recipe) -> Source:
    path = Path(name)
    if path.name != name:
        raise ArgumentError(
            f"{recipe.where} names the text {name!r}, which is not a plain file name.",
            "Use a name without directories.",
        )
    flags = recipe.source_flags.get(name, ())
    return Source(path, name, _language(path, recipe), flags, recipe.texts[name])


def _namespace_source(namespace: str, recipe: Recipe) -> Source:
    """A source that registers the op's library in ``namespace`` when the library is opened."""
    check_op_name(namespace, "The namespace")
    if recipe.binding is not Binding.STABLE:
        raise ArgumentError(
            f"Op '{recipe.op}' cannot be given a namespace, because its binding is {recipe.binding}.",
            "Declare BINDING = Binding.STABLE and define the ops with ACCEL_OP_LIBRARY.",
        )
    name = "accel_namespace.cpp"
    return Source(Path(name), name, Language.CXX, text=_NAMESPACE_TEXT.replace("NAMESPACE", namespace))


def _language(path: Path, recipe: Recipe) -> Language:
    language = SUFFIXES.get(path.suffix)
    if language is None:
        raise ArgumentError(
            f"{recipe.where}: the source {str(path)!r} has the unknown suffix {path.suffix!r}.",
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


def _standard(binding: Binding) -> str:
    """The flag for the C++ standard that the binding's headers need. A builder's own -std wins where it is newer."""
    return "-std=c++20" if binding.uses_torch_cxx and torch_install().release >= (2, 12) else "-std=c++17"


def text_list(items: object, where: str) -> list[str]:
    """``items`` as strings, without blank ones.

    Args:
        where: what returned or received the items, for the message.

    Raises:
        ArgumentError: it is not a list of strings or paths, or one has a null character.
    """
    is_list = isinstance(items, Iterable) and not isinstance(items, str | bytes | Path | Mapping)
    found = list(items) if is_list else []  # type: ignore[call-overload]
    if not is_list or not all(isinstance(item, str | Path) for item in found):
        raise ArgumentError(f"{where} is {items!r}, which is not a list of strings.", "Use a list of strings.")
    texts = [text for text in map(str, found) if text.strip()]
    if any("\0" in text for text in texts):
        raise ArgumentError(f"{where} has a null character: {texts!r}.", "Remove it: no command can have one.")
    return texts


def check_op_name(name: object, where: str) -> None:
    """Raise an AccelError if ``name`` cannot name an op, its files and its module."""
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier() or len(name) > _LONGEST_NAME:
        raise ArgumentError(
            f"{where} is {name!r}, which is not a valid op name.",
            f"Use ASCII letters, digits and underscores, at most {_LONGEST_NAME} characters, and no digit first.",
        )
