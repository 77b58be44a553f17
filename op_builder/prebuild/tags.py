"""What a wheel with binaries in it needs, as its tag says it."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable

from op_builder.cache.store import Manifest

# The oldest C library that came with these versions of GCC's libraries, as the manylinux policies have
# it: (major, minor) of glibc, GLIBCXX, CXXABI.
_GCC_LIBRARIES = (
    ((2, 17), (3, 4, 19), (1, 3, 7)),
    ((2, 24), (3, 4, 22), (1, 3, 10)),
    ((2, 27), (3, 4, 24), (1, 3, 11)),
    ((2, 31), (3, 4, 28), (1, 3, 12)),
    ((2, 34), (3, 4, 29), (1, 3, 13)),
    ((2, 35), (3, 4, 30), (1, 3, 13)),
    ((2, 39), (3, 4, 33), (1, 3, 15)),
)


def wheel_tag(manifests: Iterable[Manifest]) -> str:
    """The tag of a wheel that holds these binaries.

    Those on the Stable ABI fit any CPython. One on torch's C++ API fits the CPython it was built for. On
    Linux the platform is the oldest C library that has what all of them ask for.
    """
    held = list(manifests)
    any_python = all(manifest.kind == "accel" for manifest in held)
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    python = "py3-none" if any_python else f"{version}-{version}{sys.abiflags}"  # a "t" without the global lock
    return f"{python}-{platform_tag(held)}"


def platform_tag(manifests: Iterable[Manifest]) -> str:
    """The platform part of the tag: ``manylinux_2_28_x86_64``."""
    library, here = platform.libc_ver()
    if library != "glibc":
        from packaging.tags import platform_tags

        return next(iter(platform_tags()))
    needed: list[tuple[int, ...]] = [(2, 17)]
    for manifest in manifests:
        needs = {family: _numbers(version) for family, version in manifest.needs.items()}
        needed.append(needs.get("GLIBC", (0,))[:2])
        needed.append(_glibc_beside(needs.get("GLIBCXX", (0,)), needs.get("CXXABI", (0,))))
    # A compiler may bring newer libraries of its own than the C library here would have beside it.
    major, minor = min(max(needed), _numbers(here)[:2])
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def _glibc_beside(glibcxx: tuple[int, ...], cxxabi: tuple[int, ...]) -> tuple[int, ...]:
    fitting = (glibc for glibc, cxx, abi in _GCC_LIBRARIES if glibcxx <= cxx and cxxabi <= abi)
    return next(fitting, _GCC_LIBRARIES[-1][0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
