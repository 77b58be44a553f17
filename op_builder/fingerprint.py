"""What identifies a build: the key, in two stages.

The *plan key* is known before anything is compiled: contents of the sources, flags, identity of
the compilers, torch's headers and ABI, the Python ABI where the binding needs it. The
*build key* adds the content of every header the compiler really read, as the depfiles of the
build say. Places do not count: files are named relative to where the plan finds them, so a
moved checkout, another user's home or a reinstalled package has the same keys.

Headers of torch, Python, CUDA and the compiler count through their identity in the plan key;
all others by content, with a shortcut for files whose status is as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from op_builder import paths
from op_builder.engine.flags import grouped_flags
from op_builder.memo import Memo
from op_builder.plan import Binding, BuildPlan
from op_builder.toolchains.toolset import Toolset
from op_builder.torch_install import header_stamp, torch_install

# Counts in every key: raise it when the meaning of a plan, or of what is made of it, changes.
FORMAT = "3"
_DIGEST_LENGTH = 32
_CLOCK_TICK_NS = 50_000_000
_PIECE_BYTES = 1 << 16  # more would have the allocator ask the kernel each time


@dataclass(frozen=True)
class PlanKey:
    """The first stage: named parts, so that a miss can say which of them differs."""

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        return _digest(self.parts)

    def differs_only_in(self, other: Mapping[str, str], allowed: Iterable[str]) -> bool:
        """Whether ``other`` has the same parts, those named in ``allowed`` apart."""
        ignored = set(allowed)
        names = (set(self.parts) | set(other)) - ignored
        return all(self.parts.get(name) == other.get(name) for name in names)


@dataclass(frozen=True)
class Header:
    """One header that a build read.

    Attributes:
        root: name of the place it is relative to (see :class:`Roots`).
        path: relative to that place.
        sha256: of its content when it was read.
        status: size, times and inode then: unchanged status saves reading the file.
        shadows: places, as ``root/path``, that come earlier in the search order and held no such file.
    """

    root: str
    path: str
    sha256: str
    status: tuple[int, ...]
    shadows: tuple[str, ...] = ()

    def is_unchanged(self, roots: Roots) -> bool:
        """Whether the file is there with the same content, and nothing has come before it."""
        return self.has_same_content(roots) and not any(
            os.path.exists(roots.locate_place(place)) for place in self.shadows
        )

    def has_same_content(self, roots: Roots, since_ns: int = 0) -> bool:
        """Whether the file is there with the same content.

        Args:
            since_ns: a file that was last touched before this time has the content it had.
        """
        path = roots.locate(self.root, self.path)
        status = file_status(path)
        if status is None:
            return False
        return status == self.status or last_touched_ns(status) < since_ns or file_sha256(path) == self.sha256


@dataclass(frozen=True)
class SystemHeaders:
    """The system's headers that a build read, a hundred and more, as one: absolute paths, and one
    digest each of all contents and of all statuses."""

    paths: tuple[str, ...]
    sha256: str
    status: str

    @staticmethod
    def of(paths: Iterable[str]) -> SystemHeaders:
        ordered = tuple(sorted(paths))
        settled = all(settled_status(path) for path in ordered)
        return SystemHeaders(ordered, _contents_digest(ordered), _statuses_digest(ordered) if settled else "")

    def union(self, other: SystemHeaders) -> SystemHeaders:
        """The headers of both, as they are now."""
        return self if self == other else SystemHeaders.of({*self.paths, *other.paths})

    def is_unchanged(self, memo: Memo) -> bool:
        """Whether every file is there with the same content; ``memo`` remembers it of new statuses."""
        now = _statuses_digest(self.paths)
        if now == self.status:
            return True

        def work_out() -> tuple[dict[str, Any], list[str]]:
            return {"sha256": _contents_digest(self.paths)}, []

        try:
            # On another machine, or after an upgrade that changed nothing here, all statuses are new.
            settled = all(settled_status(path) for path in self.paths)
            fact = memo.get(f"system headers {self.sha256} {now}", work_out) if settled else work_out()[0]
        except OSError:
            return False
        return bool(fact["sha256"] == self.sha256)


@dataclass(frozen=True)
class Roots:
    """The places a plan's headers are named relative to.

    ``native`` is the project's source root, ``include0`` ... the plan's include directories,
    ``before0`` ... and ``after0`` ... those that flags have the compilers search before and after
    them, and ``source0`` ... the distinct directories of its sources.
    """

    directories: Mapping[str, str]

    @staticmethod
    def of(plan: BuildPlan) -> Roots:
        flags = (*plan.cxx_flags, *plan.nvcc_flags, *(flag for source in plan.sources for flag in source.flags))
        before, after = _searched(flags)
        found = [(f"before{i}", Path(path)) for i, path in enumerate(before)]
        found += [(f"include{i}", path) for i, path in enumerate(plan.include_dirs)]
        found += [(f"after{i}", Path(path)) for i, path in enumerate(after)]
        found.append(("native", paths.native_root()))
        directories = dict.fromkeys(source.path.parent for source in plan.sources if source.text is None)
        found += [(f"source{i}", path) for i, path in enumerate(directories)]
        return Roots({name: os.path.realpath(path) for name, path in found})

    def locate(self, root: str, path: str) -> str:
        """The absolute path; empty, which no file has, when this plan has no such place."""
        directory = self.directories.get(root)
        return f"{directory}/{path}" if directory is not None else ""

    def name(self, path: str) -> tuple[str, str]:
        """(root, relative path) of an absolute, resolved path; ("", path) for a system's file."""
        holding = [(root, place) for root, place in self.directories.items() if path.startswith(place + os.sep)]
        if holding:
            root, directory = max(holding, key=lambda item: len(item[1]))
            return root, os.path.relpath(path, directory)
        systems = path.startswith(("/usr/", "/opt/", "/lib/", os.path.realpath(sys.prefix) + os.sep))
        if systems or "source0" not in self.directories:
            return "", path
        # Beside the sources, above them: ../common/x.h of somebody's tree.
        return "source0", os.path.relpath(path, self.directories["source0"])

    def locate_place(self, place: str) -> str:
        """The absolute path of a place given as ``root/path``."""
        root, _, path = place.partition("/")
        return self.locate(root, path)

    def earlier(self, root: str, path: str) -> tuple[str, ...]:
        """Places that come before the file in the search order, and hold no such file now."""
        found = self.locate(root, path)
        searched = [name for name in self.directories if name.startswith(_SEARCHED)]
        sources = [name for name in self.directories if name.startswith("source")]
        places: list[str] = []
        for position, name in enumerate(searched):
            directory = self.directories[name] + os.sep
            if found.startswith(directory):  # it may be found through any of the directories that hold it
                shorter = found.removeprefix(directory)
                places += [f"{earlier}/{shorter}" for earlier in (*searched[:position], *sources)]
        return tuple(place for place in dict.fromkeys(places) if not os.path.exists(self.locate_place(place)))


_SEARCHED = ("before", "include", "after")


def _searched(flags: Iterable[str]) -> tuple[list[str], list[str]]:
    """The include directories that flags name: those searched before the op's own, and after."""
    places: dict[str, list[str]] = {"-iquote": [], "-I": [], "-isystem": [], "-idirafter": []}
    for flag, value, _ in grouped_flags(flags):
        if flag in places and os.path.isabs(value):
            places[flag].append(value)
    before, after = (*places["-iquote"], *places["-I"]), (*places["-isystem"], *places["-idirafter"])
    return list(dict.fromkeys(before)), list(dict.fromkeys(after))


@dataclass(frozen=True)
class BuildKey:
    """The second stage: the plan key and the headers that were read."""

    plan: PlanKey
    headers: tuple[Header, ...]
    system: SystemHeaders

    @property
    def digest(self) -> str:
        # Places and shadows count too: a build that differs from an entry only in them must not be given that
        # entry, which would not fit at the next look either.
        read = {f"{header.root}:{header.path}": [header.sha256, header.shadows] for header in self.headers}
        return _digest({"plan": self.plan.digest, "system": [self.system.sha256, self.system.paths], **read})

    def headers_unchanged(self, roots: Roots, memo: Memo, *, any_system: bool = False) -> bool:
        """Whether the compilers would read the same headers again.

        Args:
            any_system: whatever the system's headers are; for machines that have none, and no compiler.
        """
        system_unchanged = any_system or self.system.is_unchanged(memo)
        return system_unchanged and all(header.is_unchanged(roots) for header in self.headers)


def recipe_parts(plan: BuildPlan, recorded: Mapping[str, str] | None = None, since_ns: int = 0) -> dict[str, str]:
    """The parts of a key that come from the plan alone: contents of the sources, and flags.

    Args:
        recorded: parts of an earlier build. A source that was last touched before ``since_ns`` has the content it had.
    """
    parts = {
        "format": FORMAT,
        "op": plan.op,
        "module": plan.module_name,
        "binding": plan.binding.value,
        "c++ flags": json.dumps(plan.cxx_flags),
        "nvcc flags": json.dumps(plan.nvcc_flags),
        "link flags": json.dumps(plan.link_flags),
    }
    if plan.sycl is not None:
        parts["sycl"] = " ".join([plan.sycl.toolchain, *plan.sycl.devices, *plan.sycl.flags])
    for index, name in enumerate(linked_files(plan.link_flags)):
        parts[f"linked {index} {os.path.basename(name)}"] = file_sha256(name)
    for index, source in enumerate(plan.sources):
        name = f"source {index} {source.label}"
        if source.text is not None:
            content = text_sha256(source.text)
        elif recorded and name in recorded and last_touched_ns(file_status(str(source.path))) < since_ns:
            content = recorded[name].partition(" ")[0]
        else:
            content = file_sha256(str(source.path))
        parts[name] = " ".join([content, *source.flags])
    return parts


def platform_name() -> str:
    """What binaries of this machine are for: ``linux x86_64``."""
    # platform.machine() says the same, and takes a tenth of a millisecond.
    machine = os.uname().machine if hasattr(os, "uname") else platform.machine()
    return f"{sys.platform} {machine}"


def plan_key(plan: BuildPlan, toolset: Toolset | None, memo: Memo) -> PlanKey:
    """The first-stage key.

    Args:
        toolset: None where no compiler is installed; the key then lacks the compilers' parts.
    """
    parts = recipe_parts(plan)
    parts["platform"] = platform_name()
    parts["cuda archs"] = ";".join(plan.cuda_archs)
    parts["torch headers"] = header_stamp(memo, stable=plan.binding is Binding.STABLE)
    if plan.sycl is not None:
        from op_builder.toolchains.sycl_runtime import find_runtime

        runtime = find_runtime()
        parts["sycl runtime"] = runtime.version if runtime is not None else ""
    for library in plan.libraries:
        parts[f"library {library.name}"] = library.version
    if plan.binding is Binding.TORCH:
        parts["torch c++ abi"] = f"cxx11={int(torch_install().cxx11_abi)}"
        parts["python abi"] = str(sysconfig.get_config_var("EXT_SUFFIX"))
    flags = [*plan.cxx_flags, *plan.nvcc_flags, *plan.link_flags, *(toolset.cxx.command if toolset else ())]
    flags += [flag for source in plan.sources for flag in source.flags]
    if any(flag.endswith("=native") for flag in flags):
        parts["cpu"] = _cpu_model()
    if toolset is not None:
        parts.update(toolset.identities)
    return PlanKey(parts)


COMPILER_PARTS = ("c++ compiler", "cuda compiler", "sycl compiler", "compiler variables")


def build_key(plan_key: PlanKey, plan: BuildPlan, depfiles: Iterable[Path], stamped: Iterable[str]) -> BuildKey:
    """The second-stage key: with the headers that the depfiles of a finished build name.

    Args:
        stamped: directories whose files count through an identity in the plan key instead.
    """
    roots = Roots.of(plan)
    skipped = tuple(os.path.realpath(directory) + os.sep for directory in stamped)
    sources = {os.path.realpath(source.path) for source in plan.sources if source.text is None}
    # Relative names are the build's own files, which the plan key knows by their text.
    told = (
        name
        for depfile in depfiles
        for name in parse_depfile(depfile.read_text(encoding="utf-8", errors="surrogateescape"))
    )
    names = {os.path.realpath(name) for name in told if os.path.isabs(name)}
    headers, system = [], []
    not_beside = _not_beside(sources | names, roots)
    for name in sorted(names - sources):
        if name.startswith(skipped) or not os.path.exists(name):
            continue
        root, path = roots.name(name)
        if root:
            asked = [place for text, place in not_beside if name.endswith(os.sep + text)]
            shadows = tuple(dict.fromkeys([*roots.earlier(root, path), *asked]))
            headers.append(Header(root, path, file_sha256(name), settled_status(name), shadows))
        else:
            system.append(name)
    return BuildKey(plan_key, tuple(headers), SystemHeaders.of(system))


_QUOTED = re.compile(rb'^[ \t]*#[ \t]*(?:include|import)[ \t]*"([^"\n]+)"', re.MULTILINE)


def _not_beside(names: Iterable[str], roots: Roots) -> list[tuple[str, str]]:
    """(text, place) of each ``#include "text"`` in the op's own files that was not found beside the file.

    A file that is put at that place is read instead of the one that was found.
    """
    found = []
    for name in sorted(names):
        if not roots.name(name)[0] or not os.path.isfile(name):
            continue
        for text in map(os.fsdecode, _QUOTED.findall(Path(name).read_bytes())):
            beside = os.path.normpath(os.path.join(os.path.dirname(name), text))
            if not os.path.exists(beside):
                found.append((text, "/".join(roots.name(beside))))
    return found


def linked_files(flags: Iterable[str]) -> list[str]:
    """Files that end up in the binary or steer the link: archives, objects, version scripts.

    A shared library is only named in the binary, whatever it holds.
    """
    words = [word for flag in flags for word in re.split("[,=]", flag.removeprefix("@"))]
    directories = [flag.removeprefix("-L") for flag in flags if flag.startswith("-L")]
    names = [flag.removeprefix("-l") for flag in flags if flag.startswith("-l")]
    words += [f"{directory}/lib{name}.a" for directory in directories for name in names]
    return [word for word in dict.fromkeys(words) if os.path.isabs(word) and ".so" not in word and os.path.isfile(word)]


def parse_depfile(text: str) -> list[str]:
    """The prerequisites in a make-style depfile as compilers write it.

    >>> parse_depfile("a.o: a.cpp /x/b.h \\\\\\n my\\\\ dir/c.h\\n")
    ['a.cpp', '/x/b.h', 'my dir/c.h']
    """
    joined = text.replace("\\\n", " ")
    names: list[str] = []
    for line in joined.splitlines():
        _, colon, prerequisites = line.partition(": ")
        if not colon:
            continue
        held = prerequisites.replace("\\ ", "\0").replace("\\#", "#").replace("$$", "$")
        names += [name.replace("\0", " ") for name in held.split()]
    return names


def file_status(path: str) -> tuple[int, ...] | None:
    """(size, mtime_ns, ctime_ns, inode), or None when there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def last_touched_ns(status: tuple[int, ...] | None) -> int:
    """When a file was last written, moved or replaced, in nanoseconds; of no file, later than anything.

    The time of writing alone is not enough: a file that is moved or copied may keep an old one.
    """
    return max(status[1], status[2]) if status is not None else sys.maxsize


def settled_status(path: str) -> tuple[int, ...]:
    """The status that stands for a file's content; empty, which stands for none, if it just changed.

    Two writes within one tick of the file system's clock leave the same times.
    """
    status = file_status(path)
    if status is None or time.time_ns() - last_touched_ns(status) < _CLOCK_TICK_NS:
        return ()
    return status


def file_sha256(path: str) -> str:
    """SHA-256 of a file's content; read again only when its status has changed."""
    status = settled_status(path)
    return _settled_sha256(path, status) if status else content_sha256(path)


@lru_cache(maxsize=8192)
def _settled_sha256(path: str, _status: tuple[int, ...]) -> str:
    return content_sha256(path)


def content_sha256(path: str) -> str:
    """SHA-256 of a file's content, read now whatever its status."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def text_sha256(text: str) -> str:
    """SHA-256 of a source given as text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _contents_digest(paths: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(file_sha256(path) for path in paths).encode()).hexdigest()


def _statuses_digest(paths: Iterable[str]) -> str:
    return hashlib.sha256(repr([file_status(path) for path in paths]).encode()).hexdigest()


def _digest(parts: Mapping[str, Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


@lru_cache(maxsize=1)
def _cpu_model() -> str:
    """What ``-march=native`` stands for on this machine, as far as it can be seen from outside."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return platform.processor()
    told = [line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:_DIGEST_LENGTH]
