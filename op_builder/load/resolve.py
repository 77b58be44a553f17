"""The ways to load an op, in their order, each accepted or rejected with a reason.

``load()``, ``is_compatible()``, the report and the prebuild read this one list. The decision is pure: it asks only for
the facts that it is given (:class:`Facts`; :mod:`op_builder.load.lookup` finds those of this machine), one by one, so
that a warm ``load()`` finds out no more than it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from op_builder.plan import SYCL_LIBRARY
from op_builder.system.outcomes import Rejection
from op_builder.system.torch_install import parse_release

if TYPE_CHECKING:
    from typing import Protocol

    from op_builder.cache.manifest import Manifest
    from op_builder.cache.store import Entry

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
        def tvm_ffi(self) -> str | Rejection: ...

    class Facts(Protocol):
        """What is known about one op on one machine."""

        @property
        def machine(self) -> Machine: ...
        @property
        def any_compiler(self) -> bool:
            """Whether this machine has no compiler, so that binaries of every compiler are used."""
            ...

        def unavailable(self) -> Rejection | None:
            """Why the op has no way at all."""
            ...

        def opened(self) -> Iterable[tuple[Entry, Rejection | None]]:
            """The binaries that are open in this process, each with how it differs from what would be built now."""
            ...

        def prebuilt(self) -> Iterable[PrebuiltFacts]: ...
        def cached(self) -> Iterable[tuple[Entry, Rejection | None]]:
            """The cache's entries of the op's key, each with the reason why it cannot be used."""
            ...

        def building(self) -> Rejection | None:
            """Why the op cannot be compiled now."""
            ...


LOADED, PREBUILT, CACHED, BUILD = "loaded", "prebuilt", "cached", "build"

_REINSTALL = "Reinstall the package."


class Candidate(NamedTuple):
    """One way to load an op.

    Attributes:
        way: ``loaded`` in this process, ``prebuilt`` in a wheel, ``cached``, or ``build``.
        directory: of the binary; None for ``build``.
        entry: the binary with its manifest; None for ``build``, or if the manifest cannot be read.
        rejection: why it is not used; None if it is accepted.
    """

    way: str
    directory: Path | None
    entry: Entry | None
    rejection: Rejection | None


class PrebuiltFacts(NamedTuple):
    """A binary in a wheel.

    Attributes:
        other_recipe: how the recipe it was built from differs from the op's; empty if it does not.
        damage: why the binary cannot be read; empty if it can.
    """

    directory: Path
    entry: Entry | None
    other_recipe: str = ""
    damage: str = ""


def resolve(facts: Facts, *, with_prebuilt: bool = True) -> Iterator[Candidate]:
    """The ways to load an op, the best first; ``build`` is the last.

    Args:
        with_prebuilt: whether binaries in wheels count.
    """
    unavailable = facts.unavailable()
    if unavailable is not None:
        yield Candidate(BUILD, None, None, unavailable)
        return
    for entry, rejection in facts.opened():
        yield Candidate(LOADED, entry.directory, entry, rejection)
    for found in facts.prebuilt() if with_prebuilt else ():
        yield Candidate(PREBUILT, found.directory, found.entry, _prebuilt_rejection(found, facts.machine))
    yield from cached_candidates(facts)
    yield Candidate(BUILD, None, None, facts.building())


def cached_candidates(facts: Facts) -> Iterator[Candidate]:
    """The candidates in the cache. Without a compiler they may be of another machine, so they must fit this one."""
    for entry, rejection in facts.cached():
        unfit = (
            machine_rejection(entry.manifest, facts.machine) if rejection is None and facts.any_compiler else rejection
        )
        yield Candidate(CACHED, entry.directory, entry, unfit)


def _prebuilt_rejection(found: PrebuiltFacts, machine: Machine) -> Rejection | None:
    if found.entry is None:
        return Rejection(found.damage, _REINSTALL)
    if found.other_recipe:
        return Rejection(f"it was built from another recipe ({found.other_recipe})")
    rejection = machine_rejection(found.entry.manifest, machine)
    if rejection is None and found.damage:
        return Rejection(found.damage, _REINSTALL)
    return rejection


def machine_rejection(manifest: Manifest, machine: Machine) -> Rejection | None:
    """Why a binary does not run on ``machine``; None if it does."""
    checks = (_other_platform, _other_torch, _other_python, _other_devices, _other_sycl, _other_tvm_ffi)
    return next((found for check in checks if (found := check(manifest, machine)) is not None), None)


def _other_platform(manifest: Manifest, machine: Machine) -> Rejection | None:
    built_for = manifest.key_parts.get("platform")
    if built_for != machine.platform:
        return Rejection(f"it was built for {built_for}, this is {machine.platform}")
    cpu = manifest.key_parts.get("cpu")
    if cpu is not None and cpu != machine.cpu:
        return Rejection("it was compiled for another machine's CPU (-march=native)")
    needed = manifest.needs.get("GLIBC")
    if needed and machine.glibc and numbers(machine.glibc) < numbers(needed):
        return Rejection(f"it needs glibc {needed}, this is {machine.glibc}")
    return None


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _other_torch(manifest: Manifest, machine: Machine) -> Rejection | None:
    if not manifest.torch:
        return None
    if manifest.fits_any_python:
        if machine.torch_release < manifest.least_torch:
            return Rejection(f"it needs torch {manifest.torch_needed}, this is {machine.torch_version}")
        return None
    if parse_release(manifest.torch) != machine.torch_release:
        return Rejection(f"it was built with torch {manifest.torch}, this is {machine.torch_version}")
    return None


def _other_python(manifest: Manifest, machine: Machine) -> Rejection | None:
    python_abi = manifest.key_parts.get("python abi")
    if python_abi is not None and python_abi != machine.python_abi:
        return Rejection(f"it was built for Python ABI {python_abi}, this is {machine.python_abi}")
    return None


def _other_devices(manifest: Manifest, machine: Machine) -> Rejection | None:
    archs = manifest.cuda_archs
    if not archs:
        return None
    from op_builder.toolchains.cuda_archs import serves

    for index, capability in enumerate(machine.cuda_capabilities):
        if not serves(archs, capability):
            found = ".".join(map(str, capability))
            return Rejection(f"it was built for CUDA architectures {';'.join(archs)}, device {index} is {found}")
    return None


def _other_sycl(manifest: Manifest, machine: Machine) -> Rejection | None:
    needed = manifest.needs.get(SYCL_LIBRARY)
    if needed is None:
        return None
    runtime = machine.sycl
    if runtime is None:
        remedy = "Install the SYCL runtime: `pip install intel-sycl-rt intel-opencl-rt`."
        return Rejection(f"it needs {SYCL_LIBRARY}.{needed}, and no SYCL runtime is installed", remedy)
    if str(runtime.major) != needed:
        return Rejection(f"it needs {SYCL_LIBRARY}.{needed}, the installed SYCL runtime is {runtime.version}")
    return None


def _other_tvm_ffi(manifest: Manifest, machine: Machine) -> Rejection | None:
    built_with = manifest.key_parts.get("library tvm_ffi")
    if built_with is None or built_with == machine.tvm_ffi:
        return None
    if isinstance(machine.tvm_ffi, Rejection):
        return machine.tvm_ffi
    return Rejection(f"it was built with apache-tvm-ffi {built_with}, this is {machine.tvm_ffi}")
