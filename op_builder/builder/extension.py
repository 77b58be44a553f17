"""The plan as a setuptools extension, for a ``setup.py`` that uses torch's ``BuildExtension``.

setuptools accepts only sources below the current directory, named relative to it. A source elsewhere, such as a kernel
in another installed package, is named through a symbolic link to its directory in ``build/``. Quoted includes then find
the headers next to the original, edits are noticed, and an sdist, which omits ``build/``, contains no absolute path.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from op_builder.errors import AccelError, IncompatibleOpError
from op_builder.plan import BuildPlan, ForeignLibrary, Source, SyclPlan
from op_builder.system.records import Memo
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.cuda_archs import gencode_flags
from op_builder.toolchains.sycl import SyclToolchain
from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY, SyclRuntime, find_ahead_runtime, find_runtime

# Relative to the current directory; setuptools uses other names in build/.
_LINKS = Path("build", "accel_sources")


def setuptools_extension(name: str, plan: BuildPlan) -> Any:
    """``CppExtension``, ``CUDAExtension`` or a SYCL extension with the plan's sources and flags.

    setuptools has no place for flags of single sources and for the flags that keep absolute paths out of the binary.
    These are omitted, so a source in several parts becomes one object. torch's ``BuildExtension`` compiles ``.c`` files
    with the C++ flags, too.

    Raises:
        MissingCUDAException: the plan has CUDA sources and no toolkit was found.
        IncompatibleOpError: the plan uses SYCL, and no SYCL runtime is installed.
        AccelError: a link to a source cannot be created.
    """
    from torch.utils import cpp_extension

    arguments: dict[str, Any] = {"name": name, "extra_link_args": list(plan.link_flags)}
    if not plan.binding.uses_torch_cxx:
        # Do not link torch_python: such an op must not depend on a Python ABI.
        arguments["py_limited_api"] = True
    libraries = plan.libraries
    if plan.sycl is not None:
        toolchain = SyclToolchain(plan.sycl.toolchain)
        icpx = shutil.which("icpx") if toolchain.is_ahead else None
        runtime = find_runtime() if icpx is None else find_ahead_runtime(icpx)
        if runtime is None:
            raise IncompatibleOpError(f"Op '{plan.op}': no SYCL runtime with its headers is installed.", INSTALL_REMEDY)
        if toolchain.is_ahead:
            return _ahead_extension(arguments, plan, plan.sycl, runtime)
        libraries = (*libraries, ForeignLibrary("sycl", runtime.version, runtime.include_dir, runtime.library))
    arguments |= {
        "sources": _relative_sources(list(dict.fromkeys(_file_of(source, name) for source in plan.sources)), name),
        "include_dirs": [str(path) for path in (*plan.include_dirs, *(each.include_dir for each in libraries))],
        "library_dirs": [str(library.library.parent) for library in libraries],
        "libraries": [library.name for library in libraries],
        "extra_compile_args": {
            "cxx": list(plan.cxx_flags),
            "nvcc": [*plan.nvcc_flags, *gencode_flags(plan.cuda_archs)],
        },
    }
    if not plan.uses_cuda:
        return cpp_extension.CppExtension(**arguments)  # type: ignore[no-untyped-call]
    # A CPU build of torch does not look for the toolkit, and others guess from nvcc on PATH, which may be a wrapper.
    cpp_extension.CUDA_HOME = str(find_cuda(Memo(Path(os.devnull))).home)
    return cpp_extension.CUDAExtension(**arguments)  # type: ignore[no-untyped-call]


def _relative_sources(sources: list[Path], name: str) -> list[str]:
    """The sources of the extension ``name`` as relative paths below the current directory, with links if needed."""
    here, links = Path.cwd(), _LINKS / name
    elsewhere = dict.fromkeys(path.parent for path in sources if not path.is_relative_to(here))
    linked = {directory: links / str(number) for number, directory in enumerate(elsewhere)}
    for directory, link in linked.items():
        _make_link(link, directory)
    return [
        str(linked[path.parent] / path.name if path.parent in linked else path.relative_to(here)) for path in sources
    ]


def _make_link(link: Path, directory: Path) -> None:
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


def _ahead_extension(arguments: dict[str, Any], plan: BuildPlan, sycl: SyclPlan, runtime: SyclRuntime) -> Any:
    """torch's ``SyclExtension`` or IPEX's ``DPCPPExtension``, which compile kernels ahead of time."""
    from torch.utils import cpp_extension

    # A compiler looks for "x.h" in the directory of the link, not of the source.
    directories = (source.path.parent for source in plan.sources)
    arguments["include_dirs"] = list(dict.fromkeys(map(str, (*plan.include_dirs, *directories))))
    cxx_flags, sycl_flags = list(plan.cxx_flags), [*plan.cxx_flags, *sycl.flags]
    if sycl.toolchain == SyclToolchain.IPEX.value:
        from intel_extension_for_pytorch.xpu.cpp_extension import DPCPPExtension  # type: ignore[import-not-found]

        sources = _with_texts(plan, sycl, arguments["name"], ".cpp")
        return DPCPPExtension(**arguments, sources=sources, extra_compile_args={"cxx": sycl_flags})
    if cpp_extension.SYCL_HOME is None:  # only an XPU build of torch looks for it
        cpp_extension.SYCL_HOME = str(runtime.prefix)
    return cpp_extension.SyclExtension(  # type: ignore[no-untyped-call]
        **arguments,
        sources=_with_texts(plan, sycl, arguments["name"], ".sycl"),  # by this suffix torch recognizes them
        library_dirs=[str(runtime.library_dir)],
        extra_compile_args={"cxx": cxx_flags, "sycl": sycl_flags},
    )


def _with_texts(plan: BuildPlan, sycl: SyclPlan, name: str, suffix: str) -> list[str]:
    """A file below the current directory for each source, which includes the kernels that the source needs.

    setuptools has no flags for single sources, so ``-include`` is not possible.
    """
    files = []
    for number, source in enumerate(plan.sources):
        place = _LINKS / name / f"{number}_{source.path.stem}{suffix}"
        texts = sycl.texts_before(source)
        if texts:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)  # it may be a link to a source
            includes = "".join(f'#include "{path}"\n' for path in (*texts, source.path))
            place.write_text(includes, encoding="utf-8")
        else:
            _make_link(place, source.path)
        files.append(str(place))
    return files


def _file_of(source: Source, name: str) -> Path:
    """The source's file; text without a file is written below the current directory."""
    if source.text is None:
        return source.path
    path = Path.cwd() / _LINKS / name / source.path.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source.text, encoding="utf-8")
    return path
