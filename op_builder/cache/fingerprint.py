"""What identifies a build: the key, in two stages.

The *plan key* is known before anything is compiled: contents of the sources, flags, identity of
the compilers, torch's headers and ABI, the Python ABI where the binding needs it. The
*build key* adds the content of every header the compiler really read, and of every archive the
linker read, according to the depfiles of the build. Places do not count: files are named relative to
where the plan finds them, so a moved checkout, another user's home or a reinstalled package has the same keys.

Headers of torch, Python, CUDA and the compiler count through their identity in the plan key;
all others by content, with a shortcut for files whose status is as it was.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from op_builder.cache.headers import Header, Roots, SystemHeaders
from op_builder.plan import BuildPlan
from op_builder.system.file_contents import file_sha256, file_status, last_touched_ns, text_sha256
from op_builder.system.memo import Memo
from op_builder.system.torch_install import header_stamp, torch_install
from op_builder.toolchains.flags import contents_of, linked_files, named_files
from op_builder.toolchains.toolset import Toolset

# Raise it when the members of manifests change.
MANIFEST_FORMAT = 8
# Counts in every key: raise its first number when the meaning of a plan, or of what is made of it, changes. So two
# versions of this project that write different manifests never look for the same entry.
FORMAT = f"5.{MANIFEST_FORMAT}"
_DIGEST_LENGTH = 32


class PlanKey(NamedTuple):
    """The first stage: named parts, so that a miss can report which of them differs."""

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        return _digest(self.parts)

    def differs_only_in(self, other: Mapping[str, str], allowed: Iterable[str]) -> bool:
        """Whether ``other`` has the same parts, those named in ``allowed`` apart."""
        ignored = set(allowed)
        names = (set(self.parts) | set(other)) - ignored
        return all(self.parts.get(name) == other.get(name) for name in names)


class BuildKey(NamedTuple):
    """The second stage: the plan key and what the build found.

    Attributes:
        headers: the op's own that were read.
        absent: places, as ``root/path``, where a file was looked for and none existed.
        system: the system's headers that were read.
    """

    plan: PlanKey
    headers: tuple[Header, ...]
    absent: tuple[str, ...]
    system: SystemHeaders

    @property
    def digest(self) -> str:
        # Places count too: a build that differs from an entry only in them must not be given that entry, which would
        # not fit at the next look either.
        read = {f"{header.root}:{header.path}": header.sha256 for header in self.headers}
        system = [self.system.sha256, self.system.paths]
        return _digest({"plan": self.plan.digest, "system": system, "absent": self.absent, **read})

    def headers_unchanged(self, roots: Roots, memo: Memo, *, any_system: bool = False) -> bool:
        """Whether the compilers would read the same headers again.

        Args:
            any_system: whatever the system's headers are; for machines that have none, and no compiler.
        """
        system_unchanged = any_system or self.system.is_unchanged(memo)
        return (
            system_unchanged
            and all(header.is_unchanged(roots) for header in self.headers)
            and not any(os.path.exists(roots.locate_place(place)) for place in self.absent)
        )


def recipe_parts(plan: BuildPlan) -> dict[str, str]:
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
    parts.update((f"linked {index}", text) for index, text in enumerate(contents_of(linked_files(plan.link_flags))))
    compiled = [*plan.cxx_flags, *plan.nvcc_flags, *(plan.sycl.flags if plan.sycl is not None else ())]
    compiled += [flag for source in plan.sources for flag in source.flags]
    parts.update((f"named {index}", text) for index, text in enumerate(contents_of(named_files(compiled))))
    for index, source in enumerate(plan.sources):
        name = f"source {index} {source.label}"
        content = file_sha256(str(source.path)) if source.text is None else text_sha256(source.text)
        parts[name] = " ".join([content, *source.flags])
    return parts


def platform_name() -> str:
    """What binaries of this machine are for: ``linux x86_64``."""
    # platform.machine() returns the same, but takes a tenth of a millisecond.
    machine = os.uname().machine if hasattr(os, "uname") else platform.machine()
    return f"{sys.platform} {machine}"


def plan_key(plan: BuildPlan, toolset: Toolset | None, memo: Memo) -> PlanKey:
    """The first-stage key.

    Args:
        toolset: None where no compiler is installed; the key then lacks the compilers' parts.
    """
    parts = recipe_parts(plan)
    parts["platform"] = platform_name() if plan.target is None else plan.target.platform
    parts["cuda archs"] = ";".join(plan.cuda_archs)
    if plan.sycl is not None:
        from op_builder.toolchains.sycl_runtime import find_runtime

        runtime = find_runtime()
        parts["sycl runtime"] = runtime.version if runtime is not None else ""
    for library in plan.libraries:
        parts[f"library {library.name}"] = library.version
    if plan.binding.uses_torch_cxx:
        # Thousands of headers, as one. An op on the Stable ABI reads a few, or none, and they are looked at one by one.
        parts["torch headers"] = header_stamp(memo)
        parts["torch c++ abi"] = f"cxx11={int(torch_install().cxx11_abi)}"
        import sysconfig  # half a millisecond that an op on the Stable ABI does not need

        parts["python abi"] = str(sysconfig.get_config_var("EXT_SUFFIX"))
    flags = [*plan.cxx_flags, *plan.nvcc_flags, *plan.link_flags, *(toolset.cxx.command if toolset else ())]
    flags += [flag for source in plan.sources for flag in source.flags]
    if any(flag.endswith("=native") for flag in flags):
        parts["cpu"] = cpu_digest()
    if toolset is not None:
        parts.update(toolset.identities)
    return PlanKey(parts)


COMPILER_PARTS = ("c++ compiler", "cuda compiler", "sycl compiler", "compiler variables")


def saved_since(started_ns: int, plan: BuildPlan, key: BuildKey) -> bool:
    """Whether a source or a header was written, or a link to one was switched, at ``started_ns`` or later."""
    roots = Roots.of(plan)
    names = [str(source.path) for source in plan.sources if source.text is None]
    names += [roots.locate(header.root, header.path) for header in key.headers]
    names += key.system.paths
    statuses = (status for name in names for status in (file_status(name), file_status(name, of_link=True)))
    return any(last_touched_ns(status) >= started_ns for status in statuses)


def _digest(parts: Mapping[str, Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


@lru_cache(maxsize=1)
def cpu_digest() -> str:
    """What ``-march=native`` means on this machine, as far as it is visible without a compiler."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return platform.processor()
    named = [line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))]
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:_DIGEST_LENGTH]
