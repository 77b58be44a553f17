"""``torch.utils.cpp_extension``'s ``load()`` and ``load_inline()`` on this project's engine and cache.

The signatures are torch's. A program that calls torch's functions can run unchanged: see
:mod:`op_builder.integrations.torch_extensions`, ``accel-ops run`` and ``ACCEL_CPP_EXTENSION``.

What differs: the binary is in the cache of all ops, so ``build_directory`` only gets a copy of it, and
``keep_intermediates`` and ``use_pch`` have no effect (``accel-ops build --precompile`` precompiles torch's header).
SYCL sources and standalone programs are refused.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from op_builder.builder.base import log_steps
from op_builder.builder.inline import inline_texts, recipe_spec, require_binding
from op_builder.cache.store import Cache
from op_builder.errors import AccelError, ArgumentError, SourceNotFoundError
from op_builder.load.load import load_entry
from op_builder.load.resolve import WITHOUT_PREBUILT
from op_builder.plan import Binding
from op_builder.recipe import CUDA_SUFFIX, SUFFIXES, Recipe, check_op_name, text_list
from op_builder.toolchains.cuda import find_cuda

__all__ = ["load", "load_inline"]

logger = logging.getLogger(__name__)

Flags = Sequence[str] | str | None
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def load(
    name: str,
    sources: Paths,
    extra_cflags: Flags = None,
    extra_cuda_cflags: Flags = None,
    extra_sycl_cflags: Flags = None,
    extra_ldflags: Flags = None,
    extra_include_paths: Paths | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,  # noqa: ARG001
) -> Any:
    """Compile files and load them, as ``torch.utils.cpp_extension.load`` does.

    Args:
        name: of the module. Characters that no module name can have, such as dashes, become underscores.
        sources: a file or files, relative to the current directory.
        extra_cflags, extra_cuda_cflags, extra_ldflags: flags, read as a shell reads them; one string may hold several.
        extra_include_paths: include directories, relative to the current directory.
        build_directory: gets a copy of the library, ``<name>.so``, for other programs; created if it is missing.
        verbose: log each step at level INFO instead of DEBUG.
        with_cuda: add CUDA's headers and libraries; by default, if a source ends in ``.cu``.
        is_python_module: False for a library that registers torch ops, or is opened only for its effects.
        extra_sycl_cflags, with_sycl, is_standalone: refused unless empty or false.
        keep_intermediates: no effect.

    Returns:
        the module; the path of the opened library, which is in the cache, if ``is_python_module`` is false.

    Raises:
        ArgumentError: an argument has a wrong type or value, or is not supported.
        SourceNotFoundError: a source does not exist or is a directory.
        CompileError, IncompatibleOpError, LoadError, CacheError, ToolchainError: as ``OpBuilder.load()``.
    """
    _refuse("load", extra_sycl_cflags=extra_sycl_cflags, with_sycl=with_sycl, is_standalone=is_standalone)
    files = [_source(file) for file in _paths("load", "sources", sources)]
    if not files:
        raise ArgumentError("load: sources is empty.", "Pass at least one source file.")
    return _load(
        "load",
        name,
        {},
        files,
        extra_include_paths,
        build_directory,
        verbose=verbose,
        with_cuda=with_cuda,
        is_python_module=is_python_module,
        extra_cflags=extra_cflags,
        extra_cuda_cflags=extra_cuda_cflags,
        extra_ldflags=extra_ldflags,
    )


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Iterable[str] | Mapping[str, str] | None = None,
    extra_cflags: Flags = None,
    extra_cuda_cflags: Flags = None,
    extra_sycl_cflags: Flags = None,
    extra_ldflags: Flags = None,
    extra_include_paths: Paths | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,  # noqa: ARG001
    use_pch: bool = False,  # noqa: ARG001
    no_implicit_headers: bool = False,
) -> Any:
    """Compile texts and load them, as ``torch.utils.cpp_extension.load_inline`` does.

    Args:
        cpp_sources, cuda_sources: a text or texts. ``torch/extension.h`` is included before C++, and torch's types and
            the CUDA runtime before CUDA.
        functions: names of C++ functions to bind, or a mapping from names to docstrings; a name is its own docstring
            otherwise. They hold the GIL.
        with_pytorch_error_handling: C++ exceptions of torch become its Python exceptions.
        no_implicit_headers: include no headers before the texts.
        sycl_sources, extra_sycl_cflags, with_sycl: refused unless empty or false.
        keep_intermediates, use_pch: no effect.

    All other arguments, the result and the errors are those of :func:`load`.
    """
    _refuse("load_inline", sycl_sources=sycl_sources, extra_sycl_cflags=extra_sycl_cflags, with_sycl=with_sycl)
    texts = inline_texts(
        _module_name("load_inline", name),
        cpp_sources,
        "" if cuda_sources is None else cuda_sources,
        functions,
        has_headers=not no_implicit_headers,
        handles_torch_errors=with_pytorch_error_handling,
    )
    if functions is None and is_python_module:
        require_binding(texts)
    return _load(
        "load_inline",
        name,
        texts,
        [],
        extra_include_paths,
        build_directory,
        verbose=verbose,
        with_cuda=with_cuda,
        is_python_module=is_python_module,
        extra_cflags=extra_cflags,
        extra_cuda_cflags=extra_cuda_cflags,
        extra_ldflags=extra_ldflags,
    )


def _load(
    function: str,
    name: str,
    texts: dict[str, str],
    files: list[str],
    extra_include_paths: Paths | None,
    build_directory: str | os.PathLike[str] | None,
    *,
    verbose: bool,
    with_cuda: bool | None,
    is_python_module: bool,
    **flags: Flags,
) -> Any:
    _paths(function, "build_directory", None if build_directory is None else [build_directory])  # raises if it is none
    uses_cuda = any(file.endswith(CUDA_SUFFIX) for file in (*texts, *files))
    if uses_cuda and with_cuda is False:
        raise ArgumentError(
            f"{function}: with_cuda is False, but there are CUDA sources.", "Pass with_cuda=True, or leave it out."
        )
    words = {argument: _shell_words(function, argument, value) for argument, value in flags.items()}
    include_dirs = [str(Path(path).absolute()) for path in _paths(function, "extra_include_paths", extra_include_paths)]
    missing = [path for path in include_dirs if not os.path.exists(path)]
    if missing:
        logger.warning("%s: these directories of extra_include_paths do not exist: %s.", function, ", ".join(missing))
    if with_cuda and not uses_cuda:
        cuda = find_cuda(Cache().memo)
        include_dirs.append(str(cuda.home / "include"))
        words["extra_ldflags"] += [f"-L{cuda.library_dir}", cuda.runtime_flag]
    recipe = Recipe(
        _module_name(function, name),
        Binding.TORCH if is_python_module else Binding.LIBRARY,
        tuple(files),
        texts,
        include_dirs=tuple(include_dirs),
        cxx_flags=tuple(words["extra_cflags"]),
        nvcc_flags=tuple(words["extra_cuda_cflags"]),
        link_flags=tuple(words["extra_ldflags"]),
    )
    entry, loaded = load_entry(recipe_spec(recipe), Cache(), log_steps(recipe.op, verbose), WITHOUT_PREBUILT)
    assert entry is not None  # it is compiled
    if build_directory is not None:
        _copy(entry.artifact, build_directory)
    # Not the copy: opening a second file would register the ops twice.
    return loaded if is_python_module else str(entry.artifact)


def _copy(library: Path, build_directory: str | os.PathLike[str]) -> None:
    try:
        directory = Path(build_directory).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        # Replaced atomically: another process may have the older file open.
        with tempfile.TemporaryDirectory(prefix=f".{library.name}.", dir=directory) as staging:
            os.replace(shutil.copyfile(library, Path(staging, library.name)), directory / library.name)
    except OSError as error:
        raise AccelError(
            f"The library cannot be copied to build_directory {str(build_directory)!r}: {error.strerror}.",
            "Pass a directory that you can write, or leave build_directory out: the cache holds the library.",
        ) from error


def _refuse(function: str, **arguments: object) -> None:
    for argument, value in arguments.items():
        if value:
            kind = "Standalone programs are" if argument == "is_standalone" else "SYCL sources are"
            raise ArgumentError(
                f"{function}: {argument} is {value!r}. {kind} not supported here.",
                "Use torch.utils.cpp_extension for it, or op_builder.SYCLOpBuilder for SYCL kernels.",
            )


def _module_name(function: str, name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ArgumentError(f"{function}: name is {name!r}, which is not a name.", "Use a name such as 'my_ops'.")
    word = re.sub(r"\W", "_", name.strip(), flags=re.ASCII)
    word = f"_{word}" if word[0].isdecimal() else word
    check_op_name(word, f"{function}: name")  # it may be too long
    return word


def _paths(function: str, argument: str, value: object) -> list[str]:
    """Paths without the blanks and line breaks around them."""
    if value is None:
        return []
    items = [value] if isinstance(value, str | os.PathLike) else value
    if isinstance(items, Iterable) and not isinstance(items, bytes):
        items = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in items]
    return [text.strip() for text in text_list(items, f"{function}: {argument}")]


def _source(name: str) -> str:
    path = Path(name).absolute()
    if not os.path.isfile(path):
        reason = "is not a file" if os.path.exists(path) else "does not exist"
        raise SourceNotFoundError(
            f"load: the source {name!r} {reason} ({path}).",
            "Correct the paths in sources; relative ones begin at the current directory.",
        )
    if path.suffix not in SUFFIXES:
        raise ArgumentError(
            f"load: the source {name!r} has the unknown suffix {path.suffix!r}.",
            f"Use one of {', '.join(sorted(SUFFIXES))}.",
        )
    return str(path)


def _shell_words(function: str, argument: str, value: Flags) -> list[str]:
    if value is None:
        return []
    texts = text_list([value] if isinstance(value, str) else value, f"{function}: {argument}")
    try:
        return [word for text in texts for word in shlex.split(text) if word.strip()]
    except ValueError as error:
        raise ArgumentError(
            f"{function}: {argument} is {value!r}, which cannot be split into words: {error}.",
            f"Close the quotes in {argument}, or pass a list of strings.",
        ) from error
