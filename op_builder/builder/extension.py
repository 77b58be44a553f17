"""The plan as a setuptools extension, for a ``setup.py`` that uses torch's ``BuildExtension``.

setuptools takes sources that are named relative to the current directory and lie below it. A source that lies
elsewhere, as kernels in another installed package do, is reached through a symbolic link to its directory, below
``build/``. So it is compiled as it stands: a quoted include finds what lies beside the original, an edit is noticed,
and an sdist, which leaves ``build/`` out, names no path of this machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from op_builder.errors import AccelError
from op_builder.plan import Binding, BuildPlan
from op_builder.system.memo import Memo
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.cuda_archs import gencode_flags

# Below the current directory; what setuptools itself makes there has other names.
LINKS = Path("build", "accel_sources")


def setuptools_extension(name: str, plan: BuildPlan) -> Any:
    """``CppExtension``, ``CUDAExtension`` or a SYCL one with the plan's sources and flags.

    What setuptools has no place for is left out: flags for single sources, and the flags that keep this machine's
    paths out of the binary. Sources given as text it cannot take at all.

    Raises:
        MissingCUDAException: the plan has CUDA sources and there is no toolkit.
        AccelError: a source is given as text, or one lies elsewhere and there can be no link to it.
    """
    from torch.utils import cpp_extension

    if plan.sycl is not None:
        from op_builder.builder.sycl_extension import sycl_extension

        return sycl_extension(name, plan)
    texts = [source.label for source in plan.sources if source.text is not None]
    if texts:
        raise AccelError(
            f"Op '{plan.op}' gives the text of {', '.join(texts)}, and setuptools compiles only files.",
            "Write the text into a file and name that in sources().",
        )
    arguments: dict[str, Any] = {
        "name": name,
        "sources": relative_sources([source.path for source in plan.sources], name),
        "include_dirs": [
            *map(str, plan.include_dirs),
            *(str(library.include_dir) for library in plan.libraries),
        ],
        "library_dirs": [str(library.library.parent) for library in plan.libraries],
        "libraries": [library.name for library in plan.libraries],
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
    # A CPU build of torch does not look for the toolkit, and others guess from nvcc on PATH, which may be a wrapper.
    cpp_extension.CUDA_HOME = str(find_cuda(Memo(Path(os.devnull))).home)
    return cpp_extension.CUDAExtension(**arguments)  # type: ignore[no-untyped-call]


def relative_sources(sources: list[Path], name: str) -> list[str]:
    """The sources of the extension ``name`` as paths below the current directory, through links where they are not."""
    here, links = Path.cwd(), LINKS / name
    elsewhere = dict.fromkeys(path.parent for path in sources if not path.is_relative_to(here))
    linked = {directory: links / str(number) for number, directory in enumerate(elsewhere)}
    for directory, link in linked.items():
        make_link(link, directory)
    return [
        str(linked[path.parent] / path.name if path.parent in linked else path.relative_to(here)) for path in sources
    ]


def make_link(link: Path, directory: Path) -> None:
    """Have ``link`` lead to a directory, or a file, that lies elsewhere.

    Raises:
        AccelError: there can be no link here.
    """
    fresh = link.with_name(f"{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(directory)
        fresh.replace(link)  # whatever it led to before, and also while another process builds
    except OSError as error:
        raise AccelError(
            f"The sources in {directory} lie outside the project, and {link} cannot lead to them: {error.strerror}.",
            "Build in a directory that you may write, on a file system with symbolic links.",
        ) from error
