"""The headers that a build read: where each was found, by what name any machine finds it, and whether it is as it was.

Places do not count: files are named relative to where the plan finds them. Those of the system count as one.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from op_builder import paths
from op_builder.plan import Binding, BuildPlan
from op_builder.system.file_contents import (
    contents_digest,
    file_sha256,
    file_status,
    settled_status,
    statuses_digest,
)
from op_builder.system.memo import SHA256_FACT, Memo
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.flags import grouped_flags


class Header(NamedTuple):
    """One header that a build read, or another file that it took in.

    Attributes:
        root: name of the place it is relative to (see :class:`Roots`).
        path: relative to that place.
        sha256: of its content when it was read.
        status: size, times and inode then: unchanged status saves reading the file.
    """

    root: str
    path: str
    sha256: str
    status: tuple[int, ...]

    def is_unchanged(self, roots: "Roots") -> bool:
        """Whether the file exists with the same content."""
        path = roots.locate(self.root, self.path)
        status = file_status(path)
        if status is None:
            return False
        try:
            return status == self.status or file_sha256(path) == self.sha256
        except OSError:
            return False


class SystemHeaders(NamedTuple):
    """The system's headers that a build read, a hundred and more, as one: absolute paths, and one
    digest each of all contents and of all statuses."""

    paths: tuple[str, ...]
    sha256: str
    status: str

    @staticmethod
    def of(paths: Iterable[str]) -> "SystemHeaders":
        ordered = tuple(sorted(paths))
        settled = all(settled_status(path) for path in ordered)
        return SystemHeaders(ordered, contents_digest(ordered), statuses_digest(ordered) if settled else "")

    def is_unchanged(self, memo: Memo) -> bool:
        """Whether every file exists with the same content; ``memo`` remembers the result for new statuses."""
        now = statuses_digest(self.paths)
        if now == self.status:
            return True

        def work_out() -> tuple[dict[str, Any], list[str]]:
            return {"sha256": contents_digest(self.paths)}, []

        try:
            # On another machine, or after an upgrade that changed nothing here, all statuses are new.
            settled = all(settled_status(path) for path in self.paths)
            fact = memo.get(f"system headers {self.sha256} {now}", SHA256_FACT, work_out) if settled else work_out()[0]
        except (OSError, UnicodeEncodeError):  # recorded under another locale
            return False
        return bool(fact["sha256"] == self.sha256)


class Roots(NamedTuple):
    """The places a plan's headers are named relative to.

    ``native`` is the project's source root, ``include0`` ... the plan's include directories,
    ``before0`` ... and ``after0`` ... those that flags have the compilers search before and after
    them, ``torch`` the headers of torch, of which an op on the Stable ABI has its own list, and ``source0`` ... the
    distinct directories of its sources.

    Attributes:
        directories: by name, resolved.
        spelled: those that are spelled otherwise, through links, by that spelling.
    """

    directories: Mapping[str, str]
    spelled: Mapping[str, str] = {}

    @staticmethod
    def of(plan: BuildPlan) -> "Roots":
        flags = (*plan.cxx_flags, *plan.nvcc_flags, *(flag for source in plan.sources for flag in source.flags))
        before, after = _searched(flags)
        found = [(f"before{i}", Path(path)) for i, path in enumerate(before)]
        found += [(f"include{i}", path) for i, path in enumerate(plan.include_dirs)]
        found += [(f"after{i}", Path(path)) for i, path in enumerate(after)]
        if plan.binding is Binding.STABLE:
            found.append(("torch", torch_install().include_dir))
        found.append(("native", paths.native_root()))
        directories = dict.fromkeys(source.path.parent for source in plan.sources if source.text is None)
        found += [(f"source{i}", path) for i, path in enumerate(directories)]
        resolved = {name: os.path.realpath(path) for name, path in found}
        return Roots(resolved, {str(path): resolved[name] for name, path in found if str(path) != resolved[name]})

    def locate(self, root: str, path: str) -> str:
        """The absolute path; empty, which no file has, if this plan lacks that root."""
        if not root:
            return path
        directory = self.directories.get(root)
        return f"{directory}/{path}" if directory is not None else ""

    def name(self, path: str) -> tuple[str, str]:
        """(root, relative path) of an absolute path without ``..``; ("", path) for a system's file.

        Links below a root keep their names: the file is read through them, so that one which is switched shows.
        """
        root, relative = self.holding(path)
        if root or "source0" not in self.directories:
            return root, relative
        base = self.directories["source0"]
        of_system = path.startswith(("/usr/", "/opt/", "/lib/", _own_prefix() + os.sep))
        if of_system and os.path.commonpath((path, base)) in _everybodys():
            return "", path
        # Beside the sources, above them: ../common/x.h of somebody's tree.
        return "source0", os.path.relpath(path, base)

    def holding(self, path: str) -> tuple[str, str]:
        """(root, relative path) of an absolute path below a root; ("", path) for any other."""
        for spelled, resolved in self.spelled.items():
            if path.startswith(spelled + os.sep):
                path = resolved + path[len(spelled) :]
                break
        holding = [(root, place) for root, place in self.directories.items() if path.startswith(place + os.sep)]
        if not holding:
            return "", path
        root, directory = max(holding, key=lambda item: len(item[1]))
        return root, os.path.relpath(path, directory)

    def locate_place(self, place: str) -> str:
        """The absolute path of a place given as ``root/path``."""
        root, _, path = place.partition("/")
        return self.locate(root, path)

    def searched(self) -> list[str]:
        """The directories in which compilers look for headers, in their order."""
        return [directory for name, directory in self.directories.items() if name.startswith(_SEARCHED)]

    def earlier(self, root: str, path: str) -> list[str]:
        """The absolute paths that come before the file in the search order, where no file exists now."""
        found = self.locate(root, path)
        searched = self.searched()
        sources = [directory for name, directory in self.directories.items() if name.startswith("source")]
        places: list[str] = []
        for position, directory in enumerate(searched):
            if found.startswith(directory + os.sep):  # it may be found through any of the directories that hold it
                shorter = found.removeprefix(directory)
                places += [earlier + shorter for earlier in (*searched[:position], *sources)]
        return [place for place in dict.fromkeys(places) if not os.path.exists(place)]


_SEARCHED = ("before", "include", "after", "torch")


@cache
def _own_prefix() -> str:
    return os.path.realpath(sys.prefix)


@cache
def _everybodys() -> frozenset[str]:
    """Directories below which many projects lie, so that to be in one of them together means nothing."""
    import sysconfig  # half a millisecond that only a build needs

    prefix = _own_prefix()
    shared = {"/", "/usr", "/usr/lib", "/usr/local", "/usr/local/lib", "/usr/share", "/opt", prefix}
    for packages in (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]):
        place = os.path.realpath(packages)
        while place.startswith(prefix):
            shared.add(place)
            place = os.path.dirname(place)
    return frozenset(shared)


def _searched(flags: Iterable[str]) -> tuple[list[str], list[str]]:
    """The include directories that flags name: those searched before the op's own, and after."""
    places: dict[str, list[str]] = {"-iquote": [], "-I": [], "-isystem": [], "-idirafter": []}
    for flag, value, _ in grouped_flags(flags):
        if flag in places and os.path.isabs(value):
            places[flag].append(value)
    before, after = (*places["-iquote"], *places["-I"]), (*places["-isystem"], *places["-idirafter"])
    return list(dict.fromkeys(before)), list(dict.fromkeys(after))
