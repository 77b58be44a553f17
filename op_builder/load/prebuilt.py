"""Ops that were built into an installed wheel, of this project or of another package.

They are in ``_prebuilt`` in the package whose class declares the op, laid out as in the cache: a binary with its
manifest. A binary that does not fit is ignored, with a reason.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from op_builder import paths
from op_builder._version import __version__
from op_builder.cache.key import Roots, cpu_digest, platform_name, recipe_parts
from op_builder.cache.store import Cache, Entry
from op_builder.command_line import printable
from op_builder.errors import AccelError
from op_builder.paths import NATIVE_DIRECTORIES, native_root
from op_builder.plan import SYCL_LIBRARY
from op_builder.system.records import (
    RecordError,
    Schema,
    are_texts,
    decode,
    is_count,
    is_identifier,
    is_sha256,
    is_text,
    is_version,
    list_of,
    mapping_of,
    members,
    read_text,
)
from op_builder.system.torch_install import parse_release, torch_install

if TYPE_CHECKING:
    from op_builder.load.op import Op

DIRECTORY = paths.PREBUILT_DIRECTORY
INDEX = "wheel.json"
"""In that directory: what the wheel contains, what was left out and why. ``load()`` reads only the manifests."""
INDEX_FORMAT = 2

_BUILT: Schema = {
    "op": is_identifier,
    "binary": is_text,
    "platform": is_text,
    "torch": is_text,
    "python": is_text,
    "sha256": is_sha256,
    "size_bytes": is_count,
    "cuda_archs": are_texts,
    "compilers": are_texts,
    "needs": mapping_of(is_version),
    "check": is_text,
    "built_at": is_text,
}
_INDEX: Schema = {
    **dict.fromkeys(("distribution", "built_by", "accelerator", "tag"), is_text),
    "ops": list_of(members(_BUILT)),
    "left_out": list_of(members({"op": is_text, "reason": is_text})),
}
_OUR_PACKAGE = Path(__file__).resolve().parents[1]
_FLAGS = ("c++ flags", "nvcc flags")


class Rejected(NamedTuple):
    """A prebuilt binary that does not fit this process, and why; ``entry`` is None if its manifest cannot be read."""

    directory: Path
    reason: str
    entry: Entry | None


def find_prebuilt(op: Op) -> Entry | Rejected | None:
    """The prebuilt binary of an op that fits, else one that does not fit, with the reason; None without any."""
    others: list[Rejected] = []
    own: list[Rejected] = []
    for root in paths.prebuilt_roots(type(op)):
        cache = Cache(root, in_package=True)
        for entry in cache.entries(op.name):
            reason = _other_recipe(entry, root.parent, op)
            if reason is not None:
                others.append(Rejected(entry.directory, printable(reason), entry))
                continue
            reason = _misfit(entry)
            if reason is None:
                return entry
            own.append(Rejected(entry.directory, printable(reason), entry))
        own += [
            Rejected(directory, f"{reason}; reinstall the package", None) for directory, reason in cache.damaged.items()
        ]
    # A wheel may contain an op for several devices, so that another recipe is the least interesting reason.
    return next(iter([*own, *others]), None)


def refused_by_linker(entry: Entry) -> Rejected | None:
    """Why the dynamic linker would reject a prebuilt binary: the C++ library is too old. For the report."""
    has = cxx_library_versions()
    needs = entry.manifest.needs
    needed = {f"{family}_{needs[family]}" for family in ("GLIBCXX", "CXXABI") if family in needs}
    lacking = sorted(needed - has) if has else []
    if not lacking:
        return None
    return Rejected(entry.directory, f"it needs {' and '.join(lacking)}, which the installed C++ library lacks", entry)


def read_index(root: Path) -> dict[str, Any] | None:
    """The content of ``wheel.json`` in ``root``; None if it does not exist.

    Raises:
        RecordError: the file cannot be read, is damaged, or has another format.
    """
    try:
        return decode(read_text(root / INDEX), _INDEX, INDEX_FORMAT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RecordError(error.strerror) from error


def _other_recipe(entry: Entry, package: Path, op: Op) -> str | None:
    """Why ``entry`` was not built from this op's current recipe: it is for another device, or a file was edited."""
    try:
        plan = op.plan_for(entry.manifest.cuda_archs)
        built = entry.manifest.key_parts
        recipe = recipe_parts(plan)
    except AccelError:
        return None  # a wheel may contain binaries without their sources
    flags = [name for name in _FLAGS if _cpu_flags(built.get(name, "[]")) != _cpu_flags(recipe[name])]
    names = {name for name in (*built, *recipe) if name.startswith(("source ", "linked ", "named "))}
    if entry.manifest.accel_ops == __version__:
        names.update(recipe)
    other = [name for name in sorted(names) if built.get(name) != recipe.get(name)]
    # Another version may use other flags for all ops, but flags that select a CPU always count.
    other += [name for name in flags if name not in names]
    other += _changed_headers(entry, package, Roots.of(plan))
    return f"it was built from another recipe ({', '.join(other)})" if other else None


def _cpu_flags(flags: str) -> list[str]:
    return [flag for flag in json.loads(flags) if flag.startswith("-m")]


def _changed_headers(entry: Entry, package: Path, roots: Roots) -> list[str]:
    """The changed headers of the op's own package. Headers of other packages change with their versions."""
    native = [native_root() / name for name in NATIVE_DIRECTORIES] if package == _OUR_PACKAGE else []
    places = tuple(f"{place}{os.sep}" for place in (package, *native))
    own = (header for header in entry.manifest.headers if roots.locate(header.root, header.path).startswith(places))
    return [f"header {header.path}" for header in own if not header.is_unchanged(roots)]


def _misfit(entry: Entry) -> str | None:
    checks = (_other_platform, _other_torch, _other_devices, _other_sycl, _other_tvm_ffi, _damaged)
    return next((reason for check in checks if (reason := check(entry)) is not None), None)


def _other_platform(entry: Entry) -> str | None:
    here = platform_name()
    built_for = entry.manifest.key_parts.get("platform")
    if built_for != here:
        return f"it was built for {built_for}, this is {here}"
    cpu = entry.manifest.key_parts.get("cpu")
    if cpu is not None and cpu != cpu_digest():
        return "it was compiled for another machine's CPU (-march=native)"
    needed, found = entry.manifest.needs.get("GLIBC"), _glibc()
    if needed and found and numbers(found) < numbers(needed):
        return f"it needs glibc {needed}, this is {found}"
    return None


def _glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
    except (AttributeError, OSError, ValueError):  # another C library
        return ""


@lru_cache(maxsize=1)
def cxx_library_versions() -> frozenset[str]:
    """The symbol versions in the libstdc++ of this process; empty if unknown."""
    import ctypes
    import re

    try:
        ctypes.CDLL("libstdc++.so.6")
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        path = next(line.split(maxsplit=5)[5] for line in mapped if "/libstdc++.so" in line)
        found = re.findall(rb"(?:GLIBCXX|CXXABI)_[0-9.]+", Path(path).read_bytes())
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(name.decode() for name in found)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _other_torch(entry: Entry) -> str | None:
    manifest, install = entry.manifest, torch_install()
    if manifest.fits_any_python:
        if install.release < manifest.least_torch:
            return f"it needs torch {manifest.torch_needed}, this is {install.version}"
        return None
    if parse_release(manifest.torch) != install.release:
        return f"it was built with torch {manifest.torch}, this is {install.version}"
    import sysconfig  # an op on the Stable ABI does not need it, and it takes half a millisecond

    python_abi = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if manifest.key_parts.get("python abi") != python_abi:
        return f"it was built for Python ABI {manifest.key_parts.get('python abi')}, this is {python_abi}"
    return None


def _other_devices(entry: Entry) -> str | None:
    """The visible CUDA device that the binary has no code for."""
    archs = entry.manifest.cuda_archs
    if not archs or torch_install().cuda is None:
        return None
    import torch

    from op_builder.toolchains.cuda_archs import serves

    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        if not serves(archs, capability):
            found = ".".join(map(str, capability))
            return f"it was built for CUDA architectures {';'.join(archs)}, device {index} is {found}"
    return None


def _other_sycl(entry: Entry) -> str | None:
    """The difference between the SYCL runtime that the binary needs and the installed one."""
    needed = entry.manifest.needs.get(SYCL_LIBRARY)
    if needed is None:
        return None
    from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY, find_runtime

    runtime = find_runtime()
    if runtime is None:
        return f"it needs {SYCL_LIBRARY}.{needed}, and no SYCL runtime is installed. {INSTALL_REMEDY}"
    if str(runtime.major) != needed:
        return f"it needs {SYCL_LIBRARY}.{needed}, the installed SYCL runtime is {runtime.version}"
    return None


def _other_tvm_ffi(entry: Entry) -> str | None:
    built_with = entry.manifest.key_parts.get("library tvm_ffi")
    if built_with is None:
        return None
    from op_builder.toolchains.tvm_ffi import tvm_ffi_library

    try:
        version = tvm_ffi_library().version
    except AccelError as error:
        return f"{error.message.rstrip('.')}. {error.remedy}"
    return f"it was built with apache-tvm-ffi {built_with}, this is {version}" if version != built_with else None


def _damaged(entry: Entry) -> str | None:
    if entry.is_intact():
        return None
    if not entry.artifact.exists():
        return f"its binary {entry.manifest.artifact} is missing; reinstall the package"
    return "its binary does not match its manifest (altered or truncated); reinstall the package"
