"""The ways to load an op, in their order, each accepted or rejected with a reason.

``load()``, ``is_compatible()``, the report and the prebuild read this one list. The decision is pure: it asks only for
the facts that it is given (:class:`Facts`; :mod:`op_builder.load.lookup` finds those of this machine), one by one, so
that a warm ``load()`` finds out no more than it needs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from op_builder.plan import SYCL_LIBRARY
from op_builder.system.outcomes import Rejection
from op_builder.system.torch_install import parse_release

if TYPE_CHECKING:
    from typing import Protocol

    from op_builder.cache.manifest import Manifest
    from op_builder.cache.store import Entry
    from op_builder.toolchains.toolset import Toolset

    class Machine(Protocol):
        """What a binary must fit. Each fact is found when it is first asked for."""

        @property
        def platform(self) -> str: ...
        @property
        def cpu(self) -> str: ...
        @property
        def glibc(self) -> str: ...
        @property
        def torch_release(self) -> tuple[int, int]: ...
        @property
        def torch_version(self) -> str: ...
        @property
        def python_abi(self) -> str: ...
        @property
        def cuda_capabilities(self) -> list[tuple[int, int]]: ...
        @property
        def sycl(self) -> Any: ...
        @property
        def tvm_ffi(self) -> str:
            """The version of apache-tvm-ffi; empty if it cannot be imported."""
            ...

        @property
        def cxx_library(self) -> frozenset[str]:
            """The symbol versions of the C++ library; empty if they are not examined."""
            ...

    class Facts(Protocol):
        """What is known about one op on one machine."""

        @property
        def machine(self) -> Machine: ...
        @property
        def toolset(self) -> Toolset | None:
            """The compilers; None without one, so that binaries of every compiler are used."""
            ...

        @property
        def is_python(self) -> bool:
            """Whether the op is Python code, without a binary."""
            ...

        @property
        def unavailable(self) -> Rejection | None:
            """Why the op cannot be loaded in any way."""
            ...

        def opened(self) -> Iterable[tuple[Entry, Rejection | None]]:
            """The binaries that are open in this process, each with how it differs from what would be built now."""
            ...

        def prebuilt(self) -> Iterable[PrebuiltFacts]: ...
        def cached(self) -> Iterable[tuple[Entry, Rejection | None]]:
            """The cache's entries of the op's key, each with the reason why it cannot be used."""
            ...

        def loading(self) -> Rejection | None:
            """Why no binary of the op can be loaded in this process: a check of loading fails."""
            ...

        def building(self) -> Rejection | None:
            """Why the op cannot be compiled now: it is forbidden, a check fails, or its author rejects this machine."""
            ...


LOADED, PREBUILT, CACHED, BUILD, PYTHON = "loaded", "prebuilt", "cached", "build", "python"
BINARIES = (LOADED, PREBUILT, CACHED)
WAYS = (*BINARIES, BUILD)
WITHOUT_PREBUILT = (LOADED, CACHED, BUILD)


class Candidate(NamedTuple):
    """One way to load an op.

    Attributes:
        way: ``loaded`` in this process, ``prebuilt`` in a wheel, ``cached``, ``build``, or ``python`` code.
        directory: of the binary; None without one.
        entry: the binary with its manifest; None without one, or if the manifest cannot be read.
        rejection: why it is not used; None if it is accepted.
    """

    way: str
    directory: Path | None = None
    entry: Entry | None = None
    rejection: Rejection | None = None


class PrebuiltFacts(NamedTuple):
    """A binary in a wheel.

    Attributes:
        rejection: how it differs from the op's plan, or why it cannot be read.
    """

    directory: Path
    entry: Entry | None
    rejection: Rejection | None = None


def resolve(facts: Facts, ways: Container[str] = WAYS) -> Iterator[Candidate]:
    """The ways to load an op, the best first; the last is to build it, or its Python code.

    Args:
        ways: those that count.
    """
    rejection = facts.unavailable
    if facts.is_python or rejection is not None:
        if BUILD in ways:
            yield Candidate(PYTHON if facts.is_python else BUILD, rejection=rejection or facts.building())
        return
    for entry, rejection in facts.opened() if LOADED in ways else ():
        yield Candidate(LOADED, entry.directory, entry, rejection)
    for found in facts.prebuilt() if PREBUILT in ways else ():
        rejection = found.rejection
        if rejection is None and found.entry is not None:
            rejection = machine_rejection(found.entry.manifest, facts.machine) or facts.loading()
        yield Candidate(PREBUILT, found.directory, found.entry, rejection)
    for entry, rejection in facts.cached() if CACHED in ways else ():
        if rejection is None and facts.toolset is None:  # it may be of another machine
            rejection = machine_rejection(entry.manifest, facts.machine)
        rejection = rejection or facts.loading()
        yield Candidate(CACHED, entry.directory, entry, rejection)
    if BUILD in ways:
        yield Candidate(BUILD, rejection=facts.building())


def machine_rejection(manifest: Manifest, machine: Machine) -> Rejection | None:
    """Why a binary does not run on ``machine``; None if it does."""
    return next((found for check in _MACHINE_CHECKS if (found := check(manifest, machine)) is not None), None)


def _other_platform(manifest: Manifest, machine: Machine) -> Rejection | None:
    built_for = manifest.key_parts.get("platform")
    if built_for != machine.platform:
        return Rejection(f"It was built for {built_for}, this is {machine.platform}.")
    cpu = manifest.key_parts.get("cpu")
    if cpu is not None and cpu != machine.cpu:
        return Rejection("It was compiled for another machine's CPU (-march=native).")
    needed = manifest.needs.get("GLIBC")
    if needed and machine.glibc and numbers(machine.glibc) < numbers(needed):
        return Rejection(f"It needs glibc {needed}, this is {machine.glibc}.")
    return None


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _other_torch(manifest: Manifest, machine: Machine) -> Rejection | None:
    if not manifest.torch:
        return None
    if manifest.fits_any_python:
        if machine.torch_release < manifest.least_torch:
            return Rejection(f"It needs torch {manifest.torch_needed}, this is {machine.torch_version}.")
        return None
    if parse_release(manifest.torch) != machine.torch_release:
        return Rejection(f"It was built with torch {manifest.torch}, this is {machine.torch_version}.")
    return None


def _other_python(manifest: Manifest, machine: Machine) -> Rejection | None:
    python_abi = manifest.key_parts.get("python abi")
    if python_abi is not None and python_abi != machine.python_abi:
        return Rejection(f"It was built for Python ABI {python_abi}, this is {machine.python_abi}.")
    return None


def _other_devices(manifest: Manifest, machine: Machine) -> Rejection | None:
    archs = manifest.cuda_archs
    if not archs:
        return None
    from op_builder.toolchains.cuda_archs import serves

    for index, capability in enumerate(machine.cuda_capabilities):
        if not serves(archs, capability):
            found = ".".join(map(str, capability))
            return Rejection(f"It was built for CUDA architectures {';'.join(archs)}, device {index} is {found}.")
    return None


def _other_sycl(manifest: Manifest, machine: Machine) -> Rejection | None:
    needed = manifest.needs.get(SYCL_LIBRARY)
    if needed is None:
        return None
    runtime = machine.sycl
    if runtime is None:
        remedy = "Install the SYCL runtime: `pip install intel-sycl-rt intel-opencl-rt`."
        return Rejection(f"It needs {SYCL_LIBRARY}.{needed}, and no SYCL runtime is installed.", remedy)
    if str(runtime.major) != needed:
        return Rejection(f"It needs {SYCL_LIBRARY}.{needed}, the installed SYCL runtime is {runtime.version}.")
    return None


def _other_tvm_ffi(manifest: Manifest, machine: Machine) -> Rejection | None:
    built_with = manifest.key_parts.get("library tvm_ffi")
    if built_with is None or built_with == machine.tvm_ffi:
        return None
    if not machine.tvm_ffi:
        remedy = f"Install it: `pip install apache-tvm-ffi=={built_with}`."
        return Rejection(f"It needs apache-tvm-ffi {built_with}, which cannot be imported.", remedy)
    return Rejection(f"It was built with apache-tvm-ffi {built_with}, this is {machine.tvm_ffi}.")


def _older_cxx_library(manifest: Manifest, machine: Machine) -> Rejection | None:
    families = ("GLIBCXX", "CXXABI") if machine.cxx_library else ()
    needed = {f"{family}_{manifest.needs[family]}" for family in families if family in manifest.needs}
    lacking = " and ".join(sorted(needed - machine.cxx_library))
    return Rejection(f"It needs {lacking}, which the installed C++ library lacks.") if lacking else None


_MACHINE_CHECKS = (
    _other_platform,
    _other_torch,
    _other_python,
    _other_devices,
    _other_sycl,
    _other_tvm_ffi,
    _older_cxx_library,
)
