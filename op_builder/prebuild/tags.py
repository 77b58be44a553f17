"""The tag of a wheel with binaries: the Python and the system that they need."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

from op_builder.cache.machine import numbers
from op_builder.cache.store import Manifest
from op_builder.system.target import Target

GCC_LIBRARIES = (
    ((2, 17), (3, 4, 19), (1, 3, 7)),
    ((2, 24), (3, 4, 22), (1, 3, 10)),
    ((2, 27), (3, 4, 24), (1, 3, 11)),
    ((2, 31), (3, 4, 28), (1, 3, 12)),
    ((2, 34), (3, 4, 29), (1, 3, 13)),
    ((2, 35), (3, 4, 30), (1, 3, 13)),
    ((2, 39), (3, 4, 33), (1, 3, 15)),
)
"""(glibc, GLIBCXX, CXXABI): the oldest C library on systems with these C++ libraries, from the manylinux policies."""


def wheel_tag(manifests: Sequence[Manifest], target: Target | None = None) -> str:
    """The tag of a wheel with these binaries.

    Binaries on the Stable ABI fit any CPython, one on torch's C++ API only the CPython that it was built for. The
    platform on Linux is the oldest C library that all binaries can use, on macOS the oldest system.

    Args:
        target: the platform that they are for; this machine's by default.
    """
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    any_python = all(manifest.fits_any_python for manifest in manifests)
    python = "py3-none" if any_python else f"{version}-{version}{sys.abiflags}"  # with "t" for free-threaded Python
    if target is not None and target.system == "darwin":
        major, minor = max(numbers(manifest.needs["macOS"])[:2] for manifest in manifests)
        return f"{python}-macosx_{major}_{minor}_{target.machine}"
    if target is None and platform.libc_ver()[0] != "glibc":
        from packaging.tags import platform_tags

        return f"{python}-{next(iter(platform_tags()))}"
    needed: list[tuple[int, ...]] = [(2, 17)]
    for manifest in manifests:
        glibc, glibcxx, cxxabi = (manifest.needs.get(name, "") for name in ("GLIBC", "GLIBCXX", "CXXABI"))
        needed += [numbers(glibc)[:2], glibc_of_cxx(glibcxx, cxxabi)]
    if target is not None:
        return f"{python}-manylinux_{max(needed)[0]}_{max(needed)[1]}_{target.machine}"
    # A compiler may come with newer C++ libraries than this system's.
    major, minor = min(max(needed), numbers(platform.libc_ver()[1])[:2])
    return f"{python}-manylinux_{major}_{minor}_{platform.machine()}"


def glibc_of_cxx(glibcxx: str, cxxabi: str) -> tuple[int, ...]:
    """The glibc of the oldest systems whose C++ library has these versions; the newest known one if none has.

    Empty without versions.
    """
    if not (glibcxx or cxxabi):
        return ()
    fitting = (libc for libc, cxx, abi in GCC_LIBRARIES if numbers(glibcxx) <= cxx and numbers(cxxabi) <= abi)
    return next(fitting, GCC_LIBRARIES[-1][0])
