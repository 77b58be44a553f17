"""The tag of a wheel with binaries in it: what they need of Python and of the system."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence

from op_builder.cache.store import Manifest

GCC_LIBRARIES = (
    ((2, 17), (3, 4, 19), (1, 3, 7)),
    ((2, 24), (3, 4, 22), (1, 3, 10)),
    ((2, 27), (3, 4, 24), (1, 3, 11)),
    ((2, 31), (3, 4, 28), (1, 3, 12)),
    ((2, 34), (3, 4, 29), (1, 3, 13)),
    ((2, 35), (3, 4, 30), (1, 3, 13)),
    ((2, 39), (3, 4, 33), (1, 3, 15)),
)
"""(glibc, GLIBCXX, CXXABI): the oldest C library that systems with these C++ libraries have, as in the manylinux
policies."""


def wheel_tag(manifests: Sequence[Manifest]) -> str:
    """The tag of a wheel that has these binaries.

    Those on the Stable ABI fit any CPython. One on torch's C++ API fits the CPython it was built for. On
    Linux the platform is the oldest C library that has what all of them need.
    """
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    any_python = all(manifest.kind == "accel" for manifest in manifests)
    python = "py3-none" if any_python else f"{version}-{version}{sys.abiflags}"  # a "t" without the global lock
    library, here = platform.libc_ver()
    if library != "glibc":
        from packaging.tags import platform_tags  # needed only here, and requested only for builds

        return f"{python}-{next(iter(platform_tags()))}"
    needed: list[tuple[int, ...]] = [(2, 17)]
    for manifest in manifests:
        glibc, glibcxx, cxxabi = (_numbers(manifest.needs.get(name, "0")) for name in ("GLIBC", "GLIBCXX", "CXXABI"))
        fitting = (libc for libc, cxx, abi in GCC_LIBRARIES if glibcxx <= cxx and cxxabi <= abi)
        needed += [glibc[:2], next(fitting, GCC_LIBRARIES[-1][0])]
    # A compiler may bring newer C++ libraries than come with the C library here.
    major, minor = min(max(needed), _numbers(here)[:2])
    return f"{python}-manylinux_{major}_{minor}_{platform.machine()}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
