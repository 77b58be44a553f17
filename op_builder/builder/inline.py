"""``load_inline``: an op from C++ and CUDA text, for tests and notebooks; and the spec of given files and texts."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from op_builder.builder.base import log_steps
from op_builder.builder.cuda import names_archs, planned_archs
from op_builder.builder.recipe_of import flag_list
from op_builder.cache.store import Cache
from op_builder.errors import ArgumentError
from op_builder.load.load import load
from op_builder.plan import Binding, BuildPlan, PlanFacts
from op_builder.recipe import Recipe, check_op_name, normalized, plan_of, text_list
from op_builder.spec import OpSpec
from op_builder.system.outcomes import CheckOutcome, checked
from op_builder.toolchains.checks import torch_cuda_check
from op_builder.toolchains.sycl_texts import raw_literal

_CXX_HEADER = "#include <torch/extension.h>\n"
_CUDA_RUNTIME = "#include <cuda.h>\n#include <cuda_runtime.h>\n"
_CUDA_HEADER = f"#include <torch/types.h>\n{_CUDA_RUNTIME}"
_TVM_FFI_HEADER = "#include <tvm/ffi/tvm_ffi.h>\n#include <tvm/ffi/extra/c_env_api.h>\n"
# A text with one of these includes binds its functions without torch/extension.h, which takes 15 s to compile.
_LIGHT_HEADER = re.compile(
    r'^\s*#\s*include\s*[<"](?:torch/csrc/stable/|pybind11/|Python\.h|bindings/stable_library\.h|torch_c/|tvm/ffi/)',
    re.MULTILINE,
)
# What a text that binds its functions itself contains, or an include that may.
_BINDING = re.compile(r"module|library|register|dispatcher|accel_op_|pyinit_|pymodinit_|tvm_ffi", re.IGNORECASE)
_UNKNOWN_INCLUDE = re.compile(r"^\s*#\s*include(?!\s*<(?:(?:torch|ATen|c10)/[^>]*|\w+|cuda\w*\.h)>)", re.MULTILINE)


def recipe_spec(recipe: Recipe) -> OpSpec:
    """The spec of an op of given texts and files. CUDA sources get architectures unless flags name them."""
    has_archs = not recipe.uses_cuda or names_archs(recipe.nvcc_flags)

    def plan(facts: PlanFacts) -> BuildPlan:
        archs = () if has_archs else planned_archs(recipe.op, lambda requested: requested, facts)
        return plan_of(normalized(recipe._replace(cuda_archs=tuple(archs))), facts)

    def build_checks(cache: Cache, make_plan: Callable[[], BuildPlan]) -> list[CheckOutcome]:
        from op_builder.engine import checks  # not for a warm load

        return checks.build_checks(make_plan, cache, recipe.op, has_device_checks=recipe.uses_cuda)

    return OpSpec(
        recipe.op,
        plan,
        build_checks=build_checks,
        load_checks=lambda _: [checked("CUDA device", torch_cuda_check)] if recipe.uses_cuda else [],
        binding=recipe.binding,
        device="cuda" if recipe.uses_cuda else "",
    )


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
    no_implicit_headers: bool | None = None,
    verbose: bool = False,
) -> Any:
    """Compile C++ and CUDA text with the engine and the cache of all ops, and load it.

    The same text and flags are compiled once for all processes; a changed text is another op, also in this process.
    The texts of one language are compiled as one file, in their order.

    Args:
        name: the op's name, a Python identifier in ASCII; the module's name.
        cpp_sources: C++ text or texts. ``#include <torch/extension.h>`` is added before them.
        cuda_sources: CUDA text or texts; the headers of torch's types and of the CUDA runtime are added before them.
            Functions that Python calls must be declared in ``cpp_sources``.
        functions: names of C++ functions to bind; a mapping gives their docstrings. They hold the GIL. A name such as
            ``space::f`` is also that of the attribute, which ``getattr()`` finds. None if the text contains the
            binding: ``PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)``, ``TORCH_LIBRARY``, ``STABLE_TORCH_LIBRARY``,
            ``ACCEL_OP_LIBRARY`` or a CPython module.
        binding: ``Binding.STABLE`` for a text with ``ACCEL_OP_LIBRARY``: the binary then fits every torch >= 2.10 and
            every CPython, ``csrc`` of accel-ops is searched for headers, and no header of torch is added.
            ``Binding.TVM_FFI`` exports ``functions`` through apache-tvm-ffi, whose headers replace torch's.
        extra_cflags, extra_cuda_cflags, extra_ldflags: flags for the C++ compiler, nvcc and the linker.
        extra_include_paths: include directories, absolute or relative to the current directory.
        no_implicit_headers: add no header to the texts. By default none is added if there are no ``functions`` and
            every C++ text itself includes Python's, pybind11's or the Stable ABI's headers, nor for ``Binding.STABLE``,
            ``PYTHON`` and ``C``.
        verbose: log each step at level INFO instead of DEBUG.

    Returns:
        the result of ``OpBuilder.load()``: a Python module, ``torch.ops.<namespace>``, a ``tvm_ffi.Module`` or a
        ``ctypes.CDLL``.

    Raises:
        ArgumentError: an argument has a wrong type or value, or there is no text.
        CompileError: the compiler failed; its lines are those of the given text.
        IncompatibleOpError, LoadError, CacheError, ToolchainError: as ``OpBuilder.load()``.

    >>> ops = load_inline("twice", "torch::Tensor twice(torch::Tensor x) { return x * 2; }",
    ...                   functions="twice")  # doctest: +SKIP
    """
    check_op_name(name, "load_inline: name")
    if keyword.iskeyword(name):
        raise ArgumentError(
            f"load_inline: name is {name!r}, a keyword of Python.", f"Use another name, for example '{name}_op'."
        )
    if not isinstance(binding, Binding):
        raise ArgumentError(f"load_inline: binding is {binding!r}.", f"Use one of {', '.join(map(str, Binding))}.")
    is_stable = binding is Binding.STABLE
    binds_itself = binding in (Binding.STABLE, Binding.PYTHON, Binding.C)
    if functions is not None and binds_itself:
        raise ArgumentError(
            f"load_inline: functions cannot be bound with binding={binding}.",
            "Define them in the text (ACCEL_OP_LIBRARY for Binding.STABLE), or use Binding.TORCH.",
        )
    if no_implicit_headers is None:
        no_implicit_headers = binds_itself or (functions is None and _is_light(cpp_sources))
    has_headers = not no_implicit_headers
    texts = inline_texts(name, cpp_sources, cuda_sources, functions, binding=binding, has_headers=has_headers)
    cuda_file = f"{name}.cu"
    if is_stable and cuda_file in texts:
        texts[cuda_file] = _CUDA_RUNTIME + texts[cuda_file]
    include_dirs = text_list(extra_include_paths, "load_inline: extra_include_paths")
    recipe = Recipe(
        name,
        binding,
        (),
        texts,
        include_dirs=(*(str(Path(path).absolute()) for path in include_dirs), *(["csrc"] if is_stable else [])),
        cxx_flags=tuple(flag_list(extra_cflags, "load_inline: extra_cflags")),
        nvcc_flags=tuple(flag_list(extra_cuda_cflags, "load_inline: extra_cuda_cflags")),
        link_flags=tuple(flag_list(extra_ldflags, "load_inline: extra_ldflags")),
    )
    if functions is None and binding not in (Binding.LIBRARY, Binding.C):
        require_binding(texts)
    return load(recipe_spec(recipe), Cache(), log_steps(name, verbose))


def require_binding(texts: Mapping[str, str]) -> None:
    """Raise ArgumentError if the texts of an op without ``functions`` bind nothing; compiling takes half a minute."""
    if not any(_BINDING.search(text) or _UNKNOWN_INCLUDE.search(text) for text in texts.values()):
        raise ArgumentError(
            f"load_inline: the text {' and '.join(texts)} binds no function to Python.",
            "Pass functions=[...], or bind them in the text: PYBIND11_MODULE(TORCH_EXTENSION_NAME, m).",
        )


def inline_texts(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str],
    functions: str | Iterable[str] | Mapping[str, str] | None,
    *,
    binding: Binding = Binding.TORCH,
    has_headers: bool = True,
    handles_torch_errors: bool = True,
) -> dict[str, str]:
    """The content of each file that a call of ``load_inline`` compiles, by file name.

    Args:
        binding: how the functions are exported.
        has_headers: include torch's headers, or those of TVM FFI, before the texts.
        handles_torch_errors: C++ exceptions of torch become its Python exceptions.

    Raises:
        ArgumentError: an argument has a wrong type or value, or there is no text.
    """
    docs = _docs(functions, binding)
    cxx, cuda = _joined("cpp_sources", cpp_sources), _joined("cuda_sources", cuda_sources)
    if not cxx and not cuda:
        raise ArgumentError(f"load_inline: op {name!r} has no text.", "Pass cpp_sources, cuda_sources or both.")
    texts = {}
    is_tvm_ffi = binding is Binding.TVM_FFI
    if cxx or docs is not None:
        header = _TVM_FFI_HEADER if is_tvm_ffi else _CXX_HEADER
        texts[f"{name}.cpp"] = (header if has_headers else "") + cxx
        if docs is not None:
            texts[f"{name}.cpp"] += _exports(docs) if is_tvm_ffi else _module(docs, handles_torch_errors)
    if cuda:
        header = _TVM_FFI_HEADER + _CUDA_RUNTIME if is_tvm_ffi else _CUDA_HEADER
        texts[f"{name}.cu"] = (header if has_headers else "") + cuda
    return texts


def _is_light(cpp_sources: str | Sequence[str]) -> bool:
    """Whether every text includes headers that bind functions without those of torch's C++ interface."""
    return all(_LIGHT_HEADER.search(text) for text in _texts("cpp_sources", cpp_sources) if text.strip())


def _docs(functions: str | Iterable[str] | Mapping[str, str] | None, binding: Binding) -> dict[str, str] | None:
    """The docstring of each function, which is its name unless another one is given; None without an argument."""
    if functions is None:
        return None
    if isinstance(functions, Mapping):
        docs = dict(functions)
    elif isinstance(functions, str):
        docs = {functions: functions}
    else:
        # Sorted, because the order of a set differs between processes, and each order would be another op.
        docs = {name: name for name in sorted(text_list(functions, "load_inline: functions"))}
    for word in docs:
        # TVM FFI makes a symbol of the name.
        parts = [str(word)] if binding is Binding.TVM_FFI else str(word).split("::")
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            raise ArgumentError(
                f"load_inline: functions names {word!r}, which is not a name of a C++ function.",
                "Use a name such as 'f'." if binding is Binding.TVM_FFI else "Use a name such as 'f' or 'space::f'.",
            )
        if not isinstance(docs[word], str):
            raise ArgumentError(f"load_inline: the docstring of {word!r} is {docs[word]!r}.", "Use a string.")
    return docs


def _texts(argument: str, texts: object) -> list[str]:
    found: list[Any] = [texts] if isinstance(texts, str) else list(texts) if isinstance(texts, Sequence) else [None]
    if not all(isinstance(text, str) for text in found):
        raise ArgumentError(
            f"load_inline: {argument} is {texts!r}, which is neither a string nor a list of strings.",
            "Pass source code; op_builder.cpp_extension.load() compiles files.",
        )
    return found


def _joined(argument: str, texts: str | Sequence[str]) -> str:
    """All texts as one; the lines of each are counted from 1, so that compiler errors name them."""
    parts = _texts(argument, texts)
    numbered = [(f"{argument}[{index}]" if len(parts) > 1 else argument, part) for index, part in enumerate(parts)]
    return "".join(f'#line 1 "{label}"\n{part}\n' for label, part in numbered if part.strip())


def _module(docs: Mapping[str, str], handles_torch_errors: bool) -> str:
    wrapped = "torch::wrap_pybind_function({})" if handles_torch_errors else "{}"
    lines = [f'  m.def("{name}", {wrapped.format(name)}, {raw_literal(doc)});' for name, doc in docs.items()]
    return "\n".join(['#line 1 "functions"', "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}", ""])


def _exports(docs: Mapping[str, str]) -> str:
    """Exports through TVM FFI; a docstring enters the binary only with -DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1."""
    lines = [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name});" for name in docs]
    lines += [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC({name}, {raw_literal(doc)});" for name, doc in docs.items()]
    return "\n".join(['#line 1 "functions"', *lines, ""])
