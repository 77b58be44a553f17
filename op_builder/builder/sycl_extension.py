"""A SYCL plan as a setuptools extension: torch's, IPEX's, or a C++ one whose kernels are compiled at run time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from op_builder.builder.extension import LINKS, make_link, relative_sources
from op_builder.errors import IncompatibleOpError
from op_builder.plan import Binding, BuildPlan, Source
from op_builder.toolchains.sycl import SyclToolchain
from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY, SyclRuntime, find_ahead_runtime, find_runtime


def sycl_extension(name: str, plan: BuildPlan) -> Any:
    """torch's ``SyclExtension``, IPEX's ``DPCPPExtension`` or torch's ``CppExtension``, depending on the toolchain.

    Raises:
        IncompatibleOpError: no SYCL runtime is installed.
        AccelError: a link to a source cannot be created.
    """
    assert plan.sycl is not None
    icpx = shutil.which("icpx") if SyclToolchain(plan.sycl.toolchain).is_ahead else None
    runtime = find_runtime() if icpx is None else find_ahead_runtime(icpx)
    if runtime is None:
        raise IncompatibleOpError(f"Op '{plan.op}': no SYCL runtime with its headers is installed.", INSTALL_REMEDY)
    arguments: dict[str, Any] = {"name": name, "extra_link_args": list(plan.link_flags)}
    if plan.binding is Binding.STABLE:
        # Do not link torch_python: a Stable-ABI op depends on no Python ABI.
        arguments["py_limited_api"] = True
    make = {
        SyclToolchain.RTC: _at_run_time,
        SyclToolchain.ICPX: _by_torch,
        SyclToolchain.IPEX: _by_ipex,
    }[SyclToolchain(plan.sycl.toolchain)]
    return make(arguments, plan, runtime)


def _at_run_time(arguments: dict[str, Any], plan: BuildPlan, runtime: SyclRuntime) -> Any:
    from torch.utils import cpp_extension

    files = [_written(source, arguments["name"]) for source in plan.sources]
    return cpp_extension.CppExtension(  # type: ignore[no-untyped-call]
        **arguments,
        sources=relative_sources(files, arguments["name"]),
        include_dirs=[*map(str, plan.include_dirs), str(runtime.include_dir)],
        library_dirs=[str(runtime.library_dir)],
        libraries=["sycl"],
        extra_compile_args={"cxx": list(plan.cxx_flags)},
    )


def _by_torch(arguments: dict[str, Any], plan: BuildPlan, runtime: SyclRuntime) -> Any:
    from torch.utils import cpp_extension

    if cpp_extension.SYCL_HOME is None:  # only an XPU build of torch looks for it
        cpp_extension.SYCL_HOME = str(runtime.prefix)
    # torch recognizes SYCL sources by this suffix.
    sources = _with_texts(plan, arguments["name"], ".sycl")
    return cpp_extension.SyclExtension(  # type: ignore[no-untyped-call]
        **arguments,
        sources=sources,
        include_dirs=_include_dirs(plan),
        library_dirs=[str(runtime.library_dir)],
        extra_compile_args={"cxx": list(plan.cxx_flags), "sycl": [*plan.cxx_flags, *_kernel_flags(plan)]},
    )


def _by_ipex(arguments: dict[str, Any], plan: BuildPlan, _runtime: SyclRuntime) -> Any:
    from intel_extension_for_pytorch.xpu.cpp_extension import DPCPPExtension  # type: ignore[import-not-found]

    return DPCPPExtension(
        **arguments,
        sources=_with_texts(plan, arguments["name"], ".cpp"),
        include_dirs=_include_dirs(plan),
        extra_compile_args={"cxx": [*plan.cxx_flags, *_kernel_flags(plan)]},
    )


def _include_dirs(plan: BuildPlan) -> list[str]:
    # A compiler looks for "x.h" in the directory of the link, not of the source.
    directories = (source.path.parent for source in plan.sources)
    return list(dict.fromkeys(map(str, (*plan.include_dirs, *directories))))


def _with_texts(plan: BuildPlan, name: str, suffix: str) -> list[str]:
    """A file below the current directory for each source, which includes the kernels that the source needs.

    setuptools has no flags for single sources, so ``-include`` is not possible.
    """
    assert plan.sycl is not None
    files = []
    for number, source in enumerate(plan.sources):
        place = LINKS / name / f"{number}_{source.path.stem}{suffix}"
        texts = plan.sycl.texts_before(source)
        if texts:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)  # it may be a link to a source
            includes = "".join(f'#include "{path}"\n' for path in (*texts, source.path))
            place.write_text(includes, encoding="utf-8")
        else:
            make_link(place, source.path)
        files.append(str(place))
    return files


def _kernel_flags(plan: BuildPlan) -> list[str]:
    assert plan.sycl is not None
    return list(plan.sycl.flags)


def _written(source: Source, name: str) -> Path:
    """The source's file; text without a file is written below the current directory."""
    if source.text is None:
        return source.path
    path = Path.cwd() / LINKS / name / source.path.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source.text, encoding="utf-8")
    return path
