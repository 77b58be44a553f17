"""What identifies a build: the key, in two stages, and the headers that count in it.

The *plan key* is known before anything is compiled: contents of the sources, flags, identity of the compilers, torch's
headers and ABI, the Python ABI where the binding needs it. The *build key* adds the content of every header that the
compiler read, and of every archive that the linker read, according to the depfiles of the build. Absolute paths do not
count: files are named relative to where the plan finds them, so a moved checkout, another user's home or a reinstalled
package has the same keys.

Headers of torch, Python, CUDA and the compiler count through their identity in the plan key; all others by content,
with a shortcut for files with an unchanged status.
"""

import hashlib
import json
import os
import platform
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
    last_touched_ns,
    settled_status,
    statuses_digest,
    text_sha256,
)
from op_builder.system.records import SHA256_FACT, Memo
from op_builder.system.torch_install import header_stamp, torch_install
from op_builder.toolchains.flags import contents_of, grouped_flags, named_files
from op_builder.toolchains.toolset import Toolset

# Raise it when the members of manifests change.
MANIFEST_FORMAT = 9
# Part of every key. Raise the first number when the meaning of a plan, or what is built from it, changes. Versions of
# this project that write different manifests never look for the same entry.
FORMAT = f"7.{MANIFEST_FORMAT}"
# The start of the names of roots that are installed packages' include directories.
INSTALLED = "installed_"
_DIGEST_LENGTH = 32
_FEW = 8


class Header(NamedTuple):
    """A header, or another input file, that a build read.

    Attributes:
        root: name of the place it is relative to (see :class:`Roots`).
        path: relative to that place.
        sha256: of its content when it was read.
        status: size, times and inode at that time; a file with the same status is not read again.
    """

    root: str
    path: str
    sha256: str
    status: tuple[int, ...]

    def is_unchanged(self, roots: "Roots") -> bool:
        """Whether the file exists with the same content."""
        if self.root == _UNLISTED:
            return self.sha256 == _THIS_PROCESS
        path = roots.locate(self.root, self.path)
        status = file_status(path)
        if status is None:
            return False
        try:
            return status == self.status or file_sha256(path) == self.sha256
        except OSError:
            return False


_UNLISTED = "unlisted"
_THIS_PROCESS = os.urandom(16).hex()


def unlisted(what: str) -> Header:
    """In place of inputs that no tool lists: it is unchanged only in this process, so no later one uses the build."""
    return Header(_UNLISTED, what, _THIS_PROCESS, ())


class SystemHeaders(NamedTuple):
    """The system's headers that a build read, a hundred or more: absolute paths, one digest of all contents, and one
    of all statuses."""

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

        def compute() -> tuple[dict[str, Any], list[str]]:
            return {"sha256": contents_digest(self.paths)}, []

        try:
            # On another machine, or after an upgrade that changed nothing here, all statuses are new.
            settled = all(settled_status(path) for path in self.paths)
            fact = memo.get(f"system headers {self.sha256} {now}", SHA256_FACT, compute) if settled else compute()[0]
        except (OSError, UnicodeEncodeError):  # recorded under another locale
            return False
        return bool(fact["sha256"] == self.sha256)


class Roots(NamedTuple):
    """The directories that a plan's headers are named relative to.

    ``native`` is the project's source root, ``include0`` ... the plan's include directories,
    ``before0`` ... and ``after0`` ... those that flags add before and after them to the compilers' search path,
    ``installed_...`` the headers of torch, which are listed one by one for an op on the Stable ABI, of the SYCL runtime
    and of other libraries, and ``source0`` ... the directories of the sources.

    Attributes:
        directories: the resolved path of each, by name.
        aliases: for directories that are reached through links: the resolved path by the unresolved one.
    """

    directories: Mapping[str, str]
    aliases: Mapping[str, str] = {}

    @staticmethod
    def of(plan: BuildPlan) -> "Roots":
        named: dict[str, list[Path]] = {"-iquote": [], "-I": [], "-isystem": [], "-idirafter": []}
        flags = (*plan.cxx_flags, *plan.nvcc_flags, *(flag for source in plan.sources for flag in source.flags))
        for flag, value, _ in grouped_flags(flags):
            if flag in named and os.path.isabs(value):
                named[flag].append(Path(value))
        before = dict.fromkeys((*named["-iquote"], *named["-I"]))
        after = dict.fromkeys((*named["-isystem"], *named["-idirafter"]))
        sources = dict.fromkeys(source.path.parent for source in plan.sources if source.text is None)
        installed = {library.name: library.include_dir for library in plan.libraries}
        if plan.binding is Binding.STABLE:
            installed["torch"] = torch_install().include_dir
        if plan.sycl is not None:
            from op_builder.toolchains.sycl_runtime import find_runtime

            if (runtime := find_runtime()) is not None:
                installed["sycl"] = runtime.include_dir
        found = [(f"before{i}", path) for i, path in enumerate(before)]
        found += [(f"include{i}", path) for i, path in enumerate(plan.include_dirs)]
        found += [(f"after{i}", path) for i, path in enumerate(after)]
        found += [(f"{INSTALLED}{name}", path) for name, path in installed.items()]
        found.append(("native", paths.native_root()))
        found += [(f"source{i}", path) for i, path in enumerate(sources)]
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

        Links below a root are not resolved: the file is read through them, so switching a link counts.
        """
        root, relative = self.below_root(path)
        if root or "source0" not in self.directories:
            return root, relative
        base = self.directories["source0"]
        is_system = path.startswith(("/usr/", "/opt/", "/lib/", "/lib64/", _own_prefix() + os.sep))
        if is_system and os.path.commonpath((path, base)) in _shared_directories():
            return "", path
        # A header of the op's own tree, outside the directories of its sources: ../common/x.h.
        return "source0", os.path.relpath(path, base)

    def below_root(self, path: str) -> tuple[str, str]:
        """(root, relative path) of an absolute path below a root; ("", path) for any other."""
        for alias, resolved in self.aliases.items():
            if path.startswith(alias + os.sep):
                path = resolved + path[len(alias) :]
                break
        found = [(root, place) for root, place in self.directories.items() if path.startswith(place + os.sep)]
        if not found:
            return "", path
        root, directory = max(found, key=lambda item: len(item[1]))
        return root, os.path.relpath(path, directory)

    def locate_name(self, name: str) -> str:
        """The absolute path of a file named as ``root/path``."""
        root, _, path = name.partition("/")
        return self.locate(root, path)


@cache
def _own_prefix() -> str:
    return os.path.realpath(sys.prefix)


@cache
def _shared_directories() -> frozenset[str]:
    """Directories that contain many projects: two files below one of them need not belong together."""
    import sysconfig

    prefix = _own_prefix()
    shared = {"/", "/usr", "/usr/lib", "/usr/local", "/usr/local/lib", "/usr/share", "/opt", prefix}
    for packages in (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]):
        place = os.path.realpath(packages)
        while place.startswith(prefix):
            shared.add(place)
            place = os.path.dirname(place)
    return frozenset(shared)


class PlanKey(NamedTuple):
    """The first stage of a key, in named parts, so that a miss can report which of them differs."""

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        return _digest(self.parts)

    def differs_only_in(self, other: Mapping[str, str], allowed: Iterable[str]) -> bool:
        """Whether ``other`` has the same parts, except for those named in ``allowed``."""
        ignored = set(allowed)
        names = (set(self.parts) | set(other)) - ignored
        return all(self.parts.get(name) == other.get(name) for name in names)


class BuildKey(NamedTuple):
    """The second stage of a key: the plan key and what the build found.

    Attributes:
        headers: the op's own headers that were read.
        absent: paths, as ``root/path``, where a compiler looked for a file and found none.
        system: the system's headers that were read.
    """

    plan: PlanKey
    headers: tuple[Header, ...]
    absent: tuple[str, ...]
    system: SystemHeaders

    @property
    def digest(self) -> str:
        # The paths count, too: an entry in which only a path differs would not match at the next load either.
        read = {f"{header.root}:{header.path}": header.sha256 for header in self.headers}
        system = [self.system.sha256, self.system.paths]
        return _digest({"plan": self.plan.digest, "system": system, "absent": self.absent, **read})

    @property
    def unlisted(self) -> list[str]:
        """The inputs that no tool lists."""
        return [header.path for header in self.headers if header.root == _UNLISTED]

    def headers_unchanged(self, roots: Roots, memo: Memo, *, any_system: bool = False) -> bool:
        """Whether the compilers would read the same headers again.

        Args:
            any_system: ignore the system's headers; for machines that have neither them nor a compiler.
        """
        system_unchanged = any_system or self.system.is_unchanged(memo)
        if not system_unchanged or not all(header.is_unchanged(roots) for header in self.headers):
            return False
        # To list a directory is faster than to look for many files.
        absent: dict[str, list[str]] = {}
        for name in self.absent:
            directory, _, last = name.rpartition("/")
            absent.setdefault(directory, []).append(last)
        for directory, names in absent.items():
            place = roots.locate_name(f"{directory}/")
            try:
                likely = set(names).intersection(os.listdir(place)) if len(names) > _FEW else names
            except OSError:  # it is missing
                continue
            if place and any(os.path.exists(place + name) for name in likely):
                return False
        return True


def plan_parts(plan: BuildPlan) -> dict[str, str]:
    """The parts of a key that depend only on the plan: contents of the sources, and flags."""
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
    # A shared library is opened when the op is loaded, and may be upgraded until then.
    linked = (name for name in named_files(plan.link_flags) if ".so" not in os.path.basename(name))
    parts.update((f"linked {index}", text) for index, text in enumerate(contents_of(linked)))
    named = contents_of(named_files(plan.compile_flags))
    parts.update((f"named {index}", text) for index, text in enumerate(named))
    for index, source in enumerate(plan.sources):
        name = f"source {index} {source.label}"
        content = file_sha256(str(source.path)) if source.text is None else text_sha256(source.text)
        parts[name] = " ".join([content, *source.flags])
    return parts


def platform_name() -> str:
    """The platform of this machine's binaries: ``linux x86_64``."""
    # platform.machine() returns the same, but takes a tenth of a millisecond.
    machine = os.uname().machine if hasattr(os, "uname") else platform.machine()
    return f"{sys.platform} {machine}"


def plan_key(plan: BuildPlan, toolset: Toolset | None, memo: Memo) -> PlanKey:
    """The first-stage key.

    Args:
        toolset: None where no compiler is installed; the key then lacks the compilers' parts.
    """
    parts = plan_parts(plan)
    parts["platform"] = platform_name() if plan.target is None else plan.target.platform
    parts["cuda archs"] = ";".join(plan.cuda_archs)
    if plan.sycl is not None:
        from op_builder.toolchains.sycl_runtime import find_runtime

        runtime = find_runtime()
        parts["sycl runtime"] = runtime.version if runtime is not None else ""
    for library in plan.libraries:
        parts[f"library {library.name}"] = library.version
    if plan.binding.uses_torch_cxx:
        # Thousands of headers count as one. An op on the Stable ABI reads few, which are checked one by one.
        parts["torch headers"] = header_stamp(memo)
        parts["torch c++ abi"] = f"cxx11={int(torch_install().cxx11_abi)}"
    if plan.binding.uses_python:
        import sysconfig

        parts["python abi"] = str(sysconfig.get_config_var("EXT_SUFFIX"))
        parts["python headers"] = sys.version  # with the date of its build
    flags = [*plan.compile_flags, *plan.link_flags]
    in_wrapper = False
    if toolset is not None:
        parts.update(toolset.identities)
        flags += toolset.cxx.command
        in_wrapper = "native" in toolset.cxx.variables  # a word of a script
    in_variable = "=native" in parts.get("compiler variables", "")
    if in_wrapper or in_variable or any(flag.endswith("=native") for flag in flags):
        parts["cpu"] = cpu_digest()
    return PlanKey(parts)


# Without a compiler, an entry counts whatever these were.
COMPILER_PARTS = ("c++ compiler", "cuda compiler", "sycl compiler", "compiler variables", "python headers")


def saved_since(started_ns: int, plan: BuildPlan, key: BuildKey) -> bool:
    """Whether a source or a header was written, or a link to one was switched, at ``started_ns`` or later."""
    roots = Roots.of(plan)
    names = [str(source.path) for source in plan.sources if source.text is None]
    names += [roots.locate(header.root, header.path) for header in key.headers if header.root != _UNLISTED]
    names += key.system.paths
    statuses = (status for name in names for status in (file_status(name), file_status(name, of_link=True)))
    return any(last_touched_ns(status) >= started_ns for status in statuses)


def _digest(parts: Mapping[str, Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


@cache
def cpu_digest() -> str:
    """What ``-march=native`` means on this machine, as far as it is visible without a compiler."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return platform.processor()
    named = [line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))]
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:_DIGEST_LENGTH]
