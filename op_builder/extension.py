"""The plan as a setuptools extension, for a ``setup.py`` that uses torch's ``BuildExtension``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from op_builder.errors import AccelError
from op_builder.memo import Memo
from op_builder.plan import Binding, BuildPlan
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.cuda_archs import gencode_flags


def setuptools_extension(name: str, plan: BuildPlan) -> Any:
    """``CppExtension`` or ``CUDAExtension`` with the plan's sources and flags.

    Flags for single sources are left out: setuptools knows only flags for all.

    Sources below the current directory are named relative to it, as setuptools asks.

    Raises:
        MissingCUDAException: the plan has CUDA sources and there is no toolkit.
        AccelError: a source is given as text.
    """
    from torch.utils import cpp_extension

    texts = [source.label for source in plan.sources if source.text is not None]
    if texts:
        raise AccelError(
            f"Op '{plan.op}' gives the text of {', '.join(texts)}, and setuptools compiles only files.",
            "Write the text into a file and name that in sources().",
        )
    arguments: dict[str, Any] = {
        "name": name,
        "sources": [_relative(source.path) for source in plan.sources],
        "include_dirs": [str(path) for path in plan.include_dirs],
        "extra_compile_args": {
            "cxx": list(plan.cxx_flags),
            "nvcc": [*plan.nvcc_flags, *gencode_flags(plan.cuda_archs)],
        },
        "extra_link_args": list(plan.link_flags),
    }
    if plan.binding is Binding.STABLE:
        # Keeps torch_python out of the link: a Stable-ABI op needs no Python ABI.
        arguments["py_limited_api"] = True
    if not plan.uses_cuda:
        return cpp_extension.CppExtension(**arguments)  # type: ignore[no-untyped-call]
    if cpp_extension.CUDA_HOME is None:
        # A CPU build of torch does not look for the toolkit, though it compiles against it well.
        cpp_extension.CUDA_HOME = str(find_cuda(Memo(Path(os.devnull))).home)
    return cpp_extension.CUDAExtension(**arguments)  # type: ignore[no-untyped-call]


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
