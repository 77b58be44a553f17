"""``load_inline``: an op from C++ and CUDA text, for tests and notebooks."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from op_builder.builder.base import OpBuilder
from op_builder.builder.cuda import CUDAOpBuilder
from op_builder.errors import AccelError

_CXX_HEADER = "#include <torch/extension.h>\n"
_CUDA_HEADER = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
# A text that includes one of these brings what its binding needs.
_BRINGS_ITS_OWN = re.compile(
    r'^\s*#\s*include\s*[<"](?:torch/|ATen/|c10/|pybind11/|Python\.h|bindings/stable_library\.h|torch_c/)', re.MULTILINE
)


class InlineBuilder(OpBuilder):
    """An op of C++ text.

    Args:
        texts: content by file name.
    """

    def __init__(
        self,
        name: str,
        texts: dict[str, str],
        *,
        cxx_flags: Sequence[str] = (),
        cuda_flags: Sequence[str] = (),
        link_flags: Sequence[str] = (),
        include_dirs: Sequence[str] = (),
    ) -> None:
        super().__init__(name)
        self.texts = texts
        self.flags = {"c++": list(cxx_flags), "nvcc": list(cuda_flags), "link": list(link_flags)}
        self.include_dirs = list(include_dirs)

    def sources(self) -> list[str]:
        return []

    def source_texts(self) -> dict[str, str]:
        return self.texts

    def include_paths(self) -> list[str]:
        return self.include_dirs

    def cxx_args(self) -> list[str]:
        return self.flags["c++"]

    def nvcc_args(self) -> list[str]:
        return self.flags["nvcc"]

    def extra_ldflags(self) -> list[str]:
        return self.flags["link"]


class InlineCUDABuilder(InlineBuilder, CUDAOpBuilder):
    """An op of CUDA text, and C++ text if need be."""


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str] = "",
    cuda_sources: str | Sequence[str] = "",
    functions: str | Iterable[str] | Mapping[str, str] | None = None,
    *,
    extra_cflags: Sequence[str] = (),
    extra_cuda_cflags: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    extra_include_paths: Sequence[str | Path] = (),
    verbose: bool = False,
) -> Any:
    """Compile C++ and CUDA text, through the same engine and cache as any op, and load it.

    The same text and flags are compiled once, whatever process asks; a changed text is another
    op, also in this process. Texts of one language are compiled as one file, in their order.

    Args:
        name: the op's name, a Python identifier; the module's name.
        cpp_sources: C++ text or texts. ``#include <torch/extension.h>`` is put before them when
            ``functions`` are given, or where they include no header of torch, pybind11 or Python.
        cuda_sources: CUDA text or texts, after the headers of torch's types and the CUDA runtime.
            Functions that Python is to call must be declared in ``cpp_sources``.
        functions: names of C++ functions to bind; a mapping gives their docstrings. They run
            without the GIL. None where the text binds itself: ``PYBIND11_MODULE(TORCH_EXTENSION_NAME,
            m)``, ``TORCH_LIBRARY``, ``STABLE_TORCH_LIBRARY`` or a CPython module.
        extra_cflags, extra_cuda_cflags, extra_ldflags: flags of the C++ compiler, nvcc and the link.
        extra_include_paths: include directories, absolute or relative to the current directory.
        verbose: log each step at level INFO instead of DEBUG.

    Returns:
        what ``OpBuilder.load()`` returns: a Python module, or ``torch.ops.<namespace>``.

    Raises:
        AccelError: a name is no identifier, or there is no text.
        CompileError: the compiler failed; lines are those of the given text.
        IncompatibleOpError, LoadError, CacheError, ToolchainError: as ``OpBuilder.load()``.

    >>> ops = load_inline("twice", "torch::Tensor twice(torch::Tensor x) { return x * 2; }",
    ...                   functions="twice")  # doctest: +SKIP
    """
    docs = _docs(functions)
    for word in (name, *docs):
        if not word.isidentifier() or keyword.iskeyword(word):
            raise AccelError(f"load_inline: {word!r} is no name for an op or a function.", "Use a Python identifier.")
    cxx, cuda = _joined("cpp_sources", cpp_sources), _joined("cuda_sources", cuda_sources)
    if not cxx and not cuda:
        raise AccelError(f"load_inline: {name!r} has no text.", "Give cpp_sources, cuda_sources or both.")
    texts = {}
    if cxx or docs:
        header = _CXX_HEADER if docs or not _BRINGS_ITS_OWN.search(cxx) else ""
        texts[f"{name}.cpp"] = header + cxx + _module(docs)
    if cuda:
        texts[f"{name}.cu"] = _CUDA_HEADER + cuda
    builder = (InlineCUDABuilder if cuda else InlineBuilder)(
        name,
        texts,
        cxx_flags=extra_cflags,
        cuda_flags=extra_cuda_cflags,
        link_flags=extra_ldflags,
        include_dirs=[str(Path(path).absolute()) for path in extra_include_paths],
    )
    return builder.load(verbose)


def _docs(functions: str | Iterable[str] | Mapping[str, str] | None) -> dict[str, str]:
    if functions is None:
        return {}
    if isinstance(functions, Mapping):
        return dict(functions)
    # Sorted: a set has another order in every process, and each order would be another op.
    names = [functions] if isinstance(functions, str) else sorted(functions)
    return dict.fromkeys(names, "")


def _joined(argument: str, texts: str | Sequence[str]) -> str:
    """One text; each part's lines are counted from its own first, so that errors name them."""
    parts = [texts] if isinstance(texts, str) else list(texts)
    numbered = [(f"{argument}[{index}]" if len(parts) > 1 else argument, part) for index, part in enumerate(parts)]
    return "".join(f'#line 1 "{label}"\n{part}\n' for label, part in numbered if part.strip())


def _module(docs: Mapping[str, str]) -> str:
    if not docs:
        return ""
    lines = [f'  m.def("{name}", torch::wrap_pybind_function({name}), {_literal(doc)});' for name, doc in docs.items()]
    return "\n".join(['#line 1 "functions"', "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}", ""])


def _literal(text: str) -> str:
    """``text`` as a C++ string literal."""
    escaped = "".join(char if char.isprintable() and char not in '"\\' else _escape(char) for char in text)
    return f'"{escaped}"'


def _escape(char: str) -> str:
    # Three octal digits end by themselves, so that a digit after them stays a digit.
    return "".join(f"\\{byte:03o}" for byte in char.encode())
