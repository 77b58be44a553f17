"""The plan as a setuptools extension, for a ``setup.py`` that uses torch's ``BuildExtension``.

setuptools accepts only sources below the current directory, named relative to it. A source elsewhere, such as a kernel
in another installed package, is named through a symbolic link to its directory in ``build/``. Quoted includes then find
the headers next to the original, edits are noticed, and an sdist, which omits ``build/``, contains no absolute path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from op_builder.errors import AccelError
from op_builder.plan import BuildPlan
from op_builder.system.memo import Memo
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.cuda_archs import gencode_flags

# Relative to the current directory; setuptools uses other names in build/.
LINKS = Path("build", "accel_sources")


def setuptools_extension(name: str, plan: BuildPlan) -> Any:
    """``CppExtension``, ``CUDAExtension`` or a SYCL extension with the plan's sources and flags.

    setuptools has no place for flags of single sources and for the flags that keep absolute paths out of the binary.
    These are omitted. torch's ``BuildExtension`` compiles ``.c`` files with the C++ flags, too.

    Raises:
        MissingCUDAException: the plan has CUDA sources and no toolkit was found.
        AccelError: a source is text without a file, or a link to a source cannot be created.
    """
    from torch.utils import cpp_extension

    if plan.sycl is not None:
        from op_builder.builder.sycl_extension import sycl_extension

        return sycl_extension(name, plan)
    texts = [source.label for source in plan.sources if source.text is not None]
    if texts:
        raise AccelError(
            f"Op '{plan.op}' has sources without files ({', '.join(texts)}), and setuptools compiles only files.",
            "Write the text to a file and return the file from sources().",
        )
    arguments: dict[str, Any] = {
        "name": name,
        "sources": relative_sources([source.path for source in plan.sources], name),
        "include_dirs": [str(path) for path in (*plan.include_dirs, *(each.include_dir for each in plan.libraries))],
        "library_dirs": [str(library.library.parent) for library in plan.libraries],
        "libraries": [library.name for library in plan.libraries],
        "extra_compile_args": {
            "cxx": list(plan.cxx_flags),
            "nvcc": [*plan.nvcc_flags, *gencode_flags(plan.cuda_archs)],
        },
        "extra_link_args": list(plan.link_flags),
    }
    if not plan.binding.uses_torch_cxx:
        # Do not link torch_python: such an op depends on no Python ABI.
        arguments["py_limited_api"] = True
    if not plan.uses_cuda:
        return cpp_extension.CppExtension(**arguments)  # type: ignore[no-untyped-call]
    # A CPU build of torch does not look for the toolkit, and others guess from nvcc on PATH, which may be a wrapper.
    cpp_extension.CUDA_HOME = str(find_cuda(Memo(Path(os.devnull))).home)
    return cpp_extension.CUDAExtension(**arguments)  # type: ignore[no-untyped-call]


def relative_sources(sources: list[Path], name: str) -> list[str]:
    """The sources of the extension ``name`` as relative paths below the current directory, with links if needed."""
    here, links = Path.cwd(), LINKS / name
    elsewhere = dict.fromkeys(path.parent for path in sources if not path.is_relative_to(here))
    linked = {directory: links / str(number) for number, directory in enumerate(elsewhere)}
    for directory, link in linked.items():
        make_link(link, directory)
    return [
        str(linked[path.parent] / path.name if path.parent in linked else path.relative_to(here)) for path in sources
    ]


def make_link(link: Path, directory: Path) -> None:
    """Create or replace the symbolic link ``link`` to a directory or a file.

    Raises:
        AccelError: the link cannot be created.
    """
    fresh = link.with_name(f"{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(directory)
        fresh.replace(link)  # atomic, because another process may be building
    except OSError as error:
        raise AccelError(
            f"The sources in {directory} are outside the project, and the link {link} failed: {error.strerror}.",
            "Build in a writable directory on a file system with symbolic links.",
        ) from error
