"""``load_inline``: an op from C++ and CUDA text, for tests and notebooks."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from op_builder.builder.base import OpBuilder
from op_builder.builder.cuda import CUDAOpBuilder
from op_builder.builder.recipe import check_op_name, flag_list, text_list
from op_builder.errors import AccelError
from op_builder.plan import Binding

_CXX_HEADER = "#include <torch/extension.h>\n"
_CUDA_RUNTIME = "#include <cuda.h>\n#include <cuda_runtime.h>\n"
_CUDA_HEADER = f"#include <torch/types.h>\n{_CUDA_RUNTIME}"
# A text with one of these includes needs no other header for its binding.
_BINDING_HEADER = re.compile(
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
        binding: Binding = Binding.TORCH,
        cxx_flags: Sequence[str] = (),
        cuda_flags: Sequence[str] = (),
        link_flags: Sequence[str] = (),
        include_dirs: Sequence[str] = (),
    ) -> None:
        super().__init__(name)
        self.BINDING = binding  # type: ignore[misc]
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
    """An op of CUDA text, with or without C++ text."""


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str] = "",
    cuda_sources: str | Sequence[str] = "",
    functions: str | Iterable[str] | Mapping[str, str] | None = None,
    *,
    binding: Binding = Binding.TORCH,
    extra_cflags: Sequence[str] = (),
    extra_cuda_cflags: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    extra_include_paths: Sequence[str | Path] = (),
    verbose: bool = False,
) -> Any:
    """Compile C++ and CUDA text with the engine and the cache of all ops, and load it.

    The same text and flags are compiled once for all processes; a changed text is another op, also in this process.
    The texts of one language are compiled as one file, in their order.

    Args:
        name: the op's name, a Python identifier in ASCII; the module's name.
        cpp_sources: C++ text or texts. ``#include <torch/extension.h>`` is added before them if ``functions`` is given,
            or if they include no header of torch, pybind11 or Python.
        cuda_sources: CUDA text or texts; the headers of torch's types and of the CUDA runtime are added before them.
            Functions that Python calls must be declared in ``cpp_sources``.
        functions: names of C++ functions to bind; a mapping gives their docstrings. They run without the GIL. None if
            the text contains the binding: ``PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)``, ``TORCH_LIBRARY``,
            ``STABLE_TORCH_LIBRARY``, ``ACCEL_OP_LIBRARY`` or a CPython module.
        binding: ``Binding.STABLE`` for a text with ``ACCEL_OP_LIBRARY``: the binary then fits every torch >= 2.10 and
            every CPython, ``csrc`` of accel-ops is searched for headers, and no header of torch is added.
        extra_cflags, extra_cuda_cflags, extra_ldflags: flags for the C++ compiler, nvcc and the linker.
        extra_include_paths: include directories, absolute or relative to the current directory.
        verbose: log each step at level INFO instead of DEBUG.

    Returns:
        the result of ``OpBuilder.load()``: a Python module, or ``torch.ops.<namespace>``.

    Raises:
        AccelError: an argument has a wrong type or value, or there is no text.
        CompileError: the compiler failed; its lines are those of the given text.
        IncompatibleOpError, LoadError, CacheError, ToolchainError: as ``OpBuilder.load()``.

    >>> ops = load_inline("twice", "torch::Tensor twice(torch::Tensor x) { return x * 2; }",
    ...                   functions="twice")  # doctest: +SKIP
    """
    docs = _docs(functions)
    check_op_name(name, "load_inline: name")
    for word in (name, *docs):
        if not isinstance(word, str) or not word.isidentifier() or keyword.iskeyword(word):
            raise AccelError(f"load_inline: {word!r} is not a valid name.", "Use a Python identifier.")
    is_stable = binding is Binding.STABLE
    if is_stable and docs:
        raise AccelError(
            "load_inline: functions cannot be bound with binding=Binding.STABLE.",
            "Define the ops in the text with ACCEL_OP_LIBRARY, or use Binding.TORCH.",
        )
    cxx, cuda = _joined("cpp_sources", cpp_sources), _joined("cuda_sources", cuda_sources)
    if not cxx and not cuda:
        raise AccelError(f"load_inline: op {name!r} has no text.", "Pass cpp_sources, cuda_sources or both.")
    texts = {}
    if cxx or docs:
        needs_header = docs or not (is_stable or _BINDING_HEADER.search(cxx))
        texts[f"{name}.cpp"] = (_CXX_HEADER if needs_header else "") + cxx + _module(docs)
    if cuda:
        texts[f"{name}.cu"] = (_CUDA_RUNTIME if is_stable else _CUDA_HEADER) + cuda
    include_dirs = text_list(extra_include_paths, "load_inline: extra_include_paths")
    builder = (InlineCUDABuilder if cuda else InlineBuilder)(
        name,
        texts,
        binding=binding,
        cxx_flags=flag_list(extra_cflags, "load_inline: extra_cflags"),
        cuda_flags=flag_list(extra_cuda_cflags, "load_inline: extra_cuda_cflags"),
        link_flags=flag_list(extra_ldflags, "load_inline: extra_ldflags"),
        include_dirs=[*(str(Path(path).absolute()) for path in include_dirs), *(["csrc"] if is_stable else [])],
    )
    return builder.load(verbose)


def _docs(functions: str | Iterable[str] | Mapping[str, str] | None) -> dict[str, str]:
    if functions is None:
        return {}
    if isinstance(functions, Mapping):
        return dict(functions)
    # Sorted, because the order of a set differs between processes, and each order would be another op.
    names = [functions] if isinstance(functions, str) else sorted(text_list(functions, "load_inline: functions"))
    return dict.fromkeys(names, "")


def _joined(argument: str, texts: str | Sequence[str]) -> str:
    """All texts as one; the lines of each are counted from 1, so that compiler errors name them."""
    if not isinstance(texts, str):
        text_list(texts, f"load_inline: {argument}")
    parts = [texts] if isinstance(texts, str) else texts
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
    # An octal escape ends after three digits, so that a digit may follow.
    return "".join(f"\\{byte:03o}" for byte in char.encode())
