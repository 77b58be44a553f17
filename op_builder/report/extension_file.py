"""A native extension's file, or a wheel with some, read without loading it."""

from __future__ import annotations

import json
import re
import shlex
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from op_builder.cache.manifest import MANIFEST
from op_builder.errors import AccelError
from op_builder.report.requirements import NAME_TAG, Binary, Requirement, needed_glibc
from op_builder.system.elf import Elf, NotElfError, read_elf, read_library, search_places
from op_builder.system.file_kinds import kind_of_file

_LEGACY = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")
_REPLACE = "Download or build it again."
# A wheel's libraries may be that many times larger than the wheel, and in addition as large as the bytes.
_MOST_EXPANSION = 20
_FREE_BYTES = 64 << 20


class UnreadableFileError(AccelError, ValueError):
    """The file is not a native extension or wheel, or it is damaged."""


class ExtensionFile(NamedTuple):
    """What a file holds.

    Attributes:
        binaries: the libraries; a wheel may have none. ``tags``: of a wheel, else None.
    """

    path: Path
    binaries: tuple[Binary, ...]
    tags: frozenset[Tag] | None = None


def read_file(path: Path) -> ExtensionFile:
    """The libraries of a ``.so`` or wheel.

    Raises:
        UnreadableFileError: it cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableFileError(f"{path} is not a file.", "Name a library (.so) or a wheel.")
        if zipfile.is_zipfile(path) or path.suffix == ".whl":
            return _wheel(path)
        elf = _elf(path.name, partial(read_library, path))
        near = {name: place for name in elf.needed if (place := _place(name, elf, path)) is not None}
        siblings = {name: _elf(name, partial(read_library, place)) for name, place in near.items()}
        manifest = path.with_name(MANIFEST)
        cpu = _cpu_of(manifest.read_bytes()) if manifest.is_file() else ""
    except OSError as error:
        reason = error.strerror or error
        raise UnreadableFileError(
            f"{path} cannot be read: {reason}.", f"Check its name and permissions: `ls -l {shlex.quote(str(path))}`."
        ) from None
    return ExtensionFile(path, (_binary(path.name, elf, siblings)._replace(cpu=cpu),))


def _place(library: str, elf: Elf, path: Path) -> Path | None:
    """The file of a library that is loaded with another one: named by its path, or in the same searched directory."""
    if "/" in library:
        place = Path(library)  # from the current directory
    else:
        directory = path.parent.resolve()
        places = (Path(place, library) for place in search_places(elf, str(directory)))
        place = next((place for place in places if place.is_file()), Path())
        if place.parent.resolve() != directory:
            return None
    return place if place.is_file() else None


def _wheel(path: Path) -> ExtensionFile:
    if kind := kind_of_file(path, expected="zip"):
        raise UnreadableFileError(f"{path} is not a wheel: it is {kind[0]}.", kind[1])
    try:
        tags = parse_wheel_filename(path.name)[3]
        with zipfile.ZipFile(path) as archive:
            members = sorted(_members(archive, path.stat().st_size))
            names = [name for name in members if _LIBRARY.search(name)]
            names = names or [name for name in members if name.endswith((".pyd", ".dll", ".dylib"))]
            elves = {name: _elf(name, partial(_read_member, archive, name)) for name in names}
            manifests = {name: f"{name.rpartition('/')[0]}/{MANIFEST}" for name in names}
            cpus = {name: _cpu_of(archive.read(one)) for name, one in manifests.items() if one in members}
    except InvalidWheelFilename:
        remedy = "Give it the name that it was published with: name-version-python-abi-platform.whl."
        raise UnreadableFileError(f"{path} is a zip archive, but its name is not a wheel's.", remedy) from None
    except (AccelError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile and its decompressors raise a dozen kinds
        raise UnreadableFileError(f"{path} is a damaged wheel: {error or type(error).__name__}.", _REPLACE) from None
    by_name = {name.rpartition("/")[2]: elf for name, elf in elves.items()}
    in_wheel = {name.rpartition("/")[2]: f"/{name}" for name in names}
    python = _python_of(tags)
    found = []
    for name, elf in elves.items():
        binary = _binary(name, elf, by_name)
        places = search_places(elf, f"/{name}".rpartition("/")[0])
        reached = {library for library, place in in_wheel.items() if place.rpartition("/")[0] in places}
        opened = binary.siblings.intersection(elf.needed) - reached
        found.append(binary._replace(python=python, cpu=cpus.get(name, ""), preloaded=opened))
    return ExtensionFile(path, tuple(found), tags)


def _read_member(archive: zipfile.ZipFile, name: str) -> Elf:
    return read_elf(archive.read(name))


def _cpu_of(manifest: bytes) -> str:
    """The CPU that an op of this library was compiled for, by its manifest; empty if it runs on any."""
    try:
        return str(json.loads(manifest)["key_parts"].get("cpu", ""))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # another program's manifest
        return ""


def _members(archive: zipfile.ZipFile, size_bytes: int) -> list[str]:
    """The names of a wheel's files, if all can be installed and read."""
    names = archive.namelist()
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"it has the file {name!r}, outside of the directory into which it is installed")
    expanded = sum(member.file_size for member in archive.infolist())
    if expanded > _FREE_BYTES + _MOST_EXPANSION * size_bytes:
        raise ValueError(f"its {size_bytes} bytes expand to {expanded}")
    return names


def _elf(name: str, read: Callable[[], Elf]) -> Elf:
    try:
        return read()
    except NotElfError as error:
        if error.remedy:
            raise UnreadableFileError(f"{name} is not a library: {error}.", error.remedy) from None
        raise UnreadableFileError(
            f"{name} cannot be read: {error}.", "Name a library for Linux (.so) or a wheel (.whl)."
        ) from None
    except ValueError as error:
        raise UnreadableFileError(f"{name} is damaged: {error}.", _REPLACE) from None


def _binary(name: str, own: Elf, siblings: Mapping[str, Elf]) -> Binary:
    """One library together with those of the siblings that are loaded with it."""
    # The loader accepts a library without any version; one that lacks a version is rejected as one from elsewhere.
    needs = {library: {version for owner, version in own.versions_of if owner == library} for library in siblings}
    fitting = {name: elf for name, elf in siblings.items() if not elf.provides or needs[name] <= elf.provides}
    reached: dict[str, Elf] = {}
    waiting = [*own.needed]
    while waiting:
        library = waiting.pop()
        if library in fitting and library not in reached:
            reached[library] = fitting[library]
            waiting += fitting[library].needed
    parts = (own, *reached.values())
    elf = own._replace(
        needed=tuple(dict.fromkeys(one for part in parts for one in part.needed)),
        rpath=tuple(dict.fromkeys(one for part in parts for one in part.rpath)),
        runpath=tuple(dict.fromkeys(one for part in parts for one in part.runpath)),
        undefined=frozenset().union(*(part.undefined for part in parts)),
        optional=frozenset().union(*(part.optional for part in parts)),
        versions=frozenset().union(*(part.versions for part in parts)),
        versions_of=frozenset().union(*(part.versions_of for part in parts)),
    )
    given = frozenset[str]().union(*(part.defined for part in parts))
    return Binary(name, elf, siblings=frozenset(reached), given=given)


def _python_of(tags: Iterable[Tag]) -> str:
    """``3.11`` for ``cp311-cp311``, ``3.10+`` for ``cp310-abi3``, otherwise nothing."""
    for tag in tags:
        found = re.match(r"cp3(\d+)$", tag.interpreter)
        if found and tag.abi == "abi3":
            return f"3.{found[1]}+"
        if found and tag.abi.startswith(tag.interpreter):
            return f"3.{found[1]}{'t' if tag.abi.endswith('t') else ''}"
    return ""


def tag_requirement(file: ExtensionFile, accepted: Iterable[Tag]) -> Requirement | None:
    """Whether a wheel's tags fit its binaries, and an installer that accepts these tags."""
    if file.tags is None:
        return None
    text = "-".join(file.path.stem.split("-")[-3:])
    mismatch = next(
        (reason for binary in file.binaries for tag in file.tags if (reason := _tag_mismatch(binary, tag))), ""
    )
    here = "pip rejects this tag here" if file.tags.isdisjoint(accepted) else ""
    return Requirement("tag", text, mismatch or "fits its libraries", mismatch or here)


def _tag_mismatch(binary: Binary, tag: Tag) -> str:
    for old, new in _LEGACY.items():
        tag = Tag(tag.interpreter, tag.abi, tag.platform.replace(f"{old}_", f"{new}_"))
    claimed = re.match(r"manylinux_(\d+)_(\d+)_", tag.platform)
    needed, symbol = needed_glibc(binary.elf)
    module = NAME_TAG.search(binary.name) if any(name.startswith("PyInit_") for name in binary.elf.defined) else None
    if not tag.platform.endswith(binary.elf.machine):
        return f"the tag says {tag.platform}, but {binary.name} is for {binary.elf.machine}"
    if claimed and (int(claimed[1]), int(claimed[2])) < needed:
        version = ".".join(map(str, needed))
        return f"the tag says glibc {claimed[1]}.{claimed[2]}, but {binary.name} needs {version}: {symbol}"
    if module and module[1] and tag.interpreter != f"cp{module[1]}{module[2]}":
        return f"the tag says {tag.interpreter}-{tag.abi}, but {binary.name} is for CPython {module[1]}.{module[2]}"
    if module and module[1] and tag.abi == "abi3":
        return f"the tag says abi3, but {binary.name} is for CPython {module[1]}.{module[2]} only"
    return ""
