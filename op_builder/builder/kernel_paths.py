"""Paths of kernels in the package whose Python code names them.

An extension package installs its native sources together with its Python files. Its builders name them through a pair
of hooks, which resolve a path relative to the calling module's file::

    kernel_path, kernel_include = kernel_path_hooks("xyz")

    class XyzScaleBuilder(CPUOpBuilder):
        def sources(self):
            return [kernel_path("kernels/scale.cpp")]

        def include_paths(self):
            return [kernel_include("kernels")]

JIT compiles the files in place. For a prebuild, ``OpBuilder.builder()`` gives setuptools paths that it accepts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from op_builder.errors import SourceNotFoundError
from op_builder.paths import archive_remedy

Hook = Callable[["str | os.PathLike[str]"], str]


def kernel_path_hooks(prefix: str) -> tuple[Hook, Hook]:
    """The functions ``<prefix>_kernel_path`` and ``<prefix>_kernel_include``.

    Each takes a path relative to the file of the module that calls it, or an absolute one, and returns the absolute
    path. The first is for a source file, the second for a directory of headers.

    Args:
        prefix: the start of their names, which tracebacks and messages show.

    Raises:
        SourceNotFoundError: raised by the functions if the file or directory does not exist.
    """
    path_name, include_name = f"{prefix}_kernel_path", f"{prefix}_kernel_include"

    def kernel_path(path: str | os.PathLike[str]) -> str:
        return _resolved(path_name, "file", os.path.isfile, path, sys._getframe(1))

    def kernel_include(path: str | os.PathLike[str]) -> str:
        return _resolved(include_name, "directory", os.path.isdir, path, sys._getframe(1))

    for hook, name in ((kernel_path, path_name), (kernel_include, include_name)):
        hook.__name__ = hook.__qualname__ = name
    kernel_path.__doc__ = "The absolute path of a source file, given relative to the calling module's own file."
    kernel_include.__doc__ = "The absolute path of a directory of headers, given relative to the calling module's file."
    return kernel_path, kernel_include


def _resolved(
    hook: str, kind: str, exists: Callable[[str], bool], path: str | os.PathLike[str], caller: FrameType
) -> str:
    file = caller.f_globals.get("__file__")
    # A notebook or a prompt has no file.
    directory = Path(file).resolve().parent if file else Path.cwd()
    found = os.path.normpath(directory / path)
    if exists(found):
        return found
    what = f"is not a {kind}" if os.path.exists(found) else "does not exist"
    raise SourceNotFoundError(
        f"{hook}({os.fspath(path)!r}), called by {caller.f_globals.get('__name__')}: {found} {what}.",
        archive_remedy([found])
        or f"Name a {kind} relative to {file or 'the current directory'}; in an installed package, add it to the "
        "package data.",
    )


sycl_kernel_path, sycl_kernel_include = kernel_path_hooks("sycl")
