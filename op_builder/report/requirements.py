"""What a native extension needs to load: pure functions of its file, of the lists of symbols and of a machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from op_builder.cache.machine import numbers
from op_builder.plan import ENTRY_POINT
from op_builder.prebuild.tags import glibc_of_cxx
from op_builder.report.known_symbols import LIBRARIES, KnownSymbols
from op_builder.system.elf import Elf, newest_versions

SYSTEM_LIBRARY = re.compile(r"(ld-linux[-\w]*|libc|libm|libdl|libpthread|librt|libutil|libgcc_s|libstdc\+\+)\.so\.\d+$")
_TORCH_LIBRARY = re.compile(r"lib(?:c10|torch|shm|caffe2)(?:_(cuda|hip|xpu)|_\w+)?\.so$")
_TORCH = re.compile(r"_Z(?:T[A-Z]|GV|GR)?N[KVRO]*(?:2at|3c10|5torch|6caffe2)|_Z\d+THP|THP|(?:aoti_)?torch_\w+$")
_STANDARD_CXX = re.compile(r"_Z(?:T[A-Z]|GV)?(?:N[KVRO]*)?S[tabsiod]")  # libstdc++'s; torch exports copies of some
_PYTHON = re.compile(r"_?Py[A-Z_]")
_OLD_ABI = re.compile(r"Ss\w{0,3}$|ERKSs")  # std::string as compiled with _GLIBCXX_USE_CXX11_ABI=0
_LOADED_WITH = {
    "libtorch_cpu.so": LIBRARIES[:2],
    "libtorch.so": (*LIBRARIES[:2], *LIBRARIES[3:]),
    "libtorch_python.so": LIBRARIES,
    "libc10_cuda.so": ("libc10.so", "libc10_cuda.so"),
    "libtorch_cuda.so": (*LIBRARIES[:2], *LIBRARIES[3:]),
}
_FREE_THREADED = ("_Py_MergeZeroLocalRefcount", "_Py_DecRefShared")  # inlined by headers of free-threaded builds alone
_NO_EXECUTABLE_STACK = (2, 41)  # the first glibc that does not open a library with one
NAME_TAG = re.compile(r"\.(?:cpython-(\d)(\d+)(t?)\b[^.]*|(abi3))\.so$")


class Binary(NamedTuple):
    """A shared library and the libraries next to it.

    Attributes:
        name: the file's name, in a wheel its path.
        elf: what the dynamic loader reads, of its siblings, too.
        siblings: names of the libraries next to it, or in its wheel, that are loaded with it.
        preloaded: those that its search path does not reach. ``given``: the symbols that they define.
        python: for which CPython it was compiled by the wheel's tag: ``3.11``, ``3.10+`` (abi3), or empty.
        cpu: the digest of the only CPU that it was compiled for, by the manifest of an op of this library, or empty.
    """

    name: str
    elf: Elf
    siblings: frozenset[str] = frozenset()
    preloaded: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    python: str = ""
    cpu: str = ""


class Machine(NamedTuple):
    """The place to load in.

    Attributes:
        torch: its version; empty if it is not installed. ``torch_libraries``: names of its libraries.
        torch_needs: names of the libraries that those need, which are open once torch is imported.
        python: ``3.11``, ``3.13t``. ``glibc``: numbers; empty on other systems. ``has_feature``: whether it defines a
            version without a number, such as ``GLIBC_ABI_GNU_TLS``.
        cxx: versions that libstdc++ has: ``GLIBCXX_3.4.30``; empty if unknown.
        machine: architecture. ``level``: of x86-64, 1 to 4. ``cpu``: digest of the CPU's model and features.
        missing: those of the names that neither torch, Python nor the C and C++ libraries define.
        library_rejected: why the loader cannot use a library that is not torch's, given the file that needs it and
            the versions that it needs of it; empty if it can.
    """

    torch: str
    torch_libraries: frozenset[str]
    torch_needs: Callable[[], frozenset[str]]
    python: str
    glibc: tuple[int, ...]
    has_feature: Callable[[str], bool]
    cxx: frozenset[str]
    machine: str
    level: int
    cpu: str
    missing: Callable[[Iterable[str]], list[str]]
    library_rejected: Callable[[str, Elf, frozenset[str]], str]


class Requirement(NamedTuple):
    """What a library needs in one respect.

    Attributes:
        axis: ``file``, ``torch``, ``Python``, ``glibc``, ``libstdc++``, ``libraries``, ``CPU``, or ``tag`` of a wheel.
        answer: where it loads. ``evidence``: the symbol or other fact that decides.
        reason: why it does not load on the machine; empty if this does not prevent it.
    """

    axis: str
    answer: str
    evidence: str
    reason: str = ""


def requirements_of(binary: Binary, known: KnownSymbols, machine: Machine) -> list[Requirement]:
    """All requirements of one library."""
    if binary.elf.unusable:
        return [Requirement("file", "none", binary.elf.unusable, binary.elf.unusable)]
    names = {name for name in binary.elf.undefined if "@" not in name} - binary.given
    standard = {name for name in names if _STANDARD_CXX.match(name)}
    python = {name for name in names if _PYTHON.match(name)}
    listed = {name for name in names if _TORCH.match(name) or not known.releases(name).isdisjoint(known.torch)}
    torch = listed - standard - python
    found = (
        _torch(binary, torch, known, machine),
        _python(binary, python, known, machine),
        _glibc(binary.elf, machine),
        _libstdcxx(binary.elf, standard, known, machine),
        _libraries(binary, names - torch - python - standard, known, machine),
        _cpu(binary, machine),
    )
    return [requirement for requirement in found if requirement is not None]


def _torch(binary: Binary, names: set[str], known: KnownSymbols, machine: Machine) -> Requirement:
    libraries = {name: match[1] for name in binary.elf.needed if (match := _TORCH_LIBRARY.match(name))}
    if not libraries and not names:
        return Requirement("torch", "any, or none", "it uses no symbol and no library of torch")
    device = {kind: name for name, kind in libraries.items() if kind}
    if not device and (cuda := sorted(filter(known.needs_cuda, names))):
        device["cuda"] = cuda[0]
    answer, evidence = _releases(names, known, known.torch)
    if old := sorted(name for name in names if _OLD_ABI.search(name) and not known.releases(name)):
        evidence = f"it was compiled with _GLIBCXX_USE_CXX11_ABI=0, which no torch since 2.7 is: {old[0]}"
    elif not device.keys().isdisjoint(("hip", "xpu")):
        answer, evidence = "not known", "the lists hold symbols of CPU and CUDA builds"
    elif answer != "none" and names:
        evidence += "" if any(name.startswith("_Z") for name in names) else "; it uses only the stable C ABI"
    if device and answer != "none":
        answer += f", {' or '.join(sorted(device)).upper()} builds"
        evidence = f"{min(device.values())}; {evidence}"
    unnamed = _unnamed(names, binary.elf.needed, known)
    if unnamed:
        answer, evidence = "none", f"it names no library (DT_NEEDED) that defines {_some(unnamed)}"
    if not machine.torch:
        reason = "torch is not installed"
    elif absent := sorted(libraries.keys() - machine.torch_libraries):
        reason = f"torch {machine.torch} has no {absent[0]}"
    elif missing := machine.missing(names):
        reason = f"torch {machine.torch} lacks {_some(missing)}"
    else:
        reason = evidence if unnamed else ""
    return Requirement("torch", answer, evidence, reason)


def _unnamed(names: set[str], needed: Sequence[str], known: KnownSymbols) -> set[str]:
    """Symbols of torch's libraries that ``needed`` neither holds nor loads; ``import torch`` opens them locally."""
    if not all(SYSTEM_LIBRARY.match(name) or _TORCH_LIBRARY.match(name) for name in needed):
        return set()  # the others may load them
    reached = {name for library in needed for name in _LOADED_WITH.get(library, (library,))}
    return {name for name in names if known.libraries(name) and known.libraries(name).isdisjoint(reached)}


def _python(binary: Binary, names: set[str], known: KnownSymbols, machine: Machine) -> Requirement:
    is_module = any(name.startswith("PyInit_") for name in binary.elf.defined)
    if not names and not is_module:
        return Requirement("Python", "any", "it uses no symbol of Python")
    tag = NAME_TAG.search(binary.name) if is_module else None
    wheel = binary.python if is_module else ""
    linked = [found[1] for name in binary.elf.needed if (found := re.match(r"libpython(\d\.\d+t?)\.so", name))]
    answer, evidence = _releases(names, known, known.python)
    bound = ""
    if tag and tag[1]:
        bound, evidence = f"{tag[1]}.{tag[2]}{tag[3]}", f"its name: {tag[0][1:]}"
    elif linked:
        bound, evidence = linked[0], f"libpython{linked[0]} (DT_NEEDED)"
    elif tag or wheel.endswith("+"):
        oldest = max(answer.split(" ")[0], wheel.rstrip("+"), key=numbers)
        answer = f"{oldest} and newer" if "newer" in answer else answer
        answer, evidence = f"{answer}, except for free-threaded builds", f"its name or tag: abi3; {evidence}"
    elif wheel:
        bound, evidence = wheel, "the wheel's tag"
    elif marks := names.intersection(_FREE_THREADED):
        answer, evidence = "free-threaded builds", f"needs {_some(marks)}"
    elif is_module:
        evidence += "; its name does not say for which Python it was compiled"
    missing = machine.missing(names)
    reason = f"Python {machine.python} lacks {_some(missing)}" if missing else ""
    if bound and bound != machine.python:
        reason = f"this Python is {machine.python}"
    elif (tag or wheel.endswith("+")) and not bound and machine.python.endswith("t"):
        reason = "this Python is free-threaded"
    return Requirement("Python", f"{bound} only" if bound else answer, evidence, reason)


def _glibc(elf: Elf, machine: Machine) -> Requirement:
    if musl := [name for name in elf.needed if name.startswith("libc.musl")]:
        return Requirement("glibc", "none: musl", musl[0], "the C library is glibc" if machine.glibc else "")
    version, evidence = _newest(elf, "GLIBC")
    here = ".".join(map(str, machine.glibc)) or "not glibc"
    reason = f"the C library is {here}" if machine.glibc < numbers(version) else ""
    answer = f"{version} and newer" if version else "any"
    evidence = evidence or "it needs no version of a symbol of glibc"
    features = sorted(name for name in elf.versions if name.startswith("GLIBC_") and not newest_versions([name]))
    if features:
        answer += f" with {_some(features)}"
        missing = [name for name in features if not machine.has_feature(name)]
        reason = reason or (f"the C library lacks {_some(missing)}" if missing else "")
    if elf.has_executable_stack:
        answer = f"{version} to 2.40" if version else "up to 2.40"
        evidence += "; newer ones refuse an executable stack: link it with -Wl,-z,noexecstack"
        reason = reason or (f"the C library is {here}" if machine.glibc >= _NO_EXECUTABLE_STACK else "")
    return Requirement("glibc", answer, evidence, reason)


def _libstdcxx(elf: Elf, names: set[str], known: KnownSymbols, machine: Machine) -> Requirement | None:
    needs = {family: _newest(elf, family) for family in ("GLIBCXX", "CXXABI")}
    reasons = [evidence for _, evidence in needs.values() if evidence][:1]
    absent = [
        f"{family}_{version}"
        for family, (version, _) in needs.items()
        if version and machine.cxx and f"{family}_{version}" not in machine.cxx
    ]
    # Those that were linked with torch's copies have no version. Compilers newer than a system's libstdc++ need them.
    some = {name for name in names if len(known.releases(name).intersection(known.torch)) < len(known.torch)}
    copies = _releases({name for name in some if known.releases(name)}, known, known.torch)[0]
    if some and copies != "none":
        reasons.append(f"where it lacks {_some(some)}, torch {copies} has it")
    if not reasons:
        return None
    systems = ".".join(map(str, glibc_of_cxx(*(version for version, _ in needs.values()))))
    answer = f"as on systems with glibc {systems} and newer" if systems else "any"
    if missing := machine.missing(names):
        absent.append(_some(missing))
    return Requirement("libstdc++", answer, "; ".join(reasons), f"libstdc++ has no {absent[0]}" if absent else "")


def needed_glibc(elf: Elf) -> tuple[tuple[int, ...], str]:
    """The oldest glibc of systems with the file's symbols of glibc and libstdc++, and the symbol that decides."""
    glibc, glibcxx, cxxabi = (_newest(elf, family) for family in ("GLIBC", "GLIBCXX", "CXXABI"))
    return max((numbers(glibc[0]), glibc[1]), (glibc_of_cxx(glibcxx[0], cxxabi[0]), glibcxx[1] or cxxabi[1]))


def _libraries(binary: Binary, names: set[str], known: KnownSymbols, machine: Machine) -> Requirement | None:
    foreign = [
        name
        for name in binary.elf.needed
        if not (SYSTEM_LIBRARY.match(name) or _TORCH_LIBRARY.match(name) or name in binary.siblings)
        and not name.startswith("libc.musl")
    ]
    unknown = [] if foreign else machine.missing(names)
    if unknown:
        reason = f"no library that it names defines {_some(unknown)}"
        return Requirement("libraries", "none", reason, reason)
    opened = ", ".join(sorted(binary.preloaded))
    if not foreign and not opened:
        return None
    rejected = []
    for name in foreign:
        versions = frozenset(version for library, version in binary.elf.versions_of if library == name)
        reason = machine.library_rejected(name, binary.elf, versions)
        if reason and name not in machine.torch_libraries and name not in machine.torch_needs():
            rejected.append(f"{name}: {reason}")
    cuda = {name: [release for release, has in known.cuda_libraries.items() if name in has] for name in foreign}
    notes = [f"{name} is in CUDA builds of torch {_span(has, known.torch)}" for name, has in cuda.items() if has]
    notes += [f"its package must open {opened}, which its search path (RUNPATH) does not reach"] if opened else []
    answer = ", ".join(foreign) or "those of its wheel"
    return Requirement("libraries", answer, "; ".join(notes) or "it names them (DT_NEEDED)", ", ".join(rejected))


def _cpu(binary: Binary, machine: Machine) -> Requirement:
    elf = binary.elf
    level = int(elf.isa.partition("-v")[2] or 1)
    answer = elf.isa or elf.machine
    evidence = "the file is marked with this level" if elf.isa else "the file is marked with no instruction set"
    reason = f"the CPU is x86-64-v{machine.level}" if level > machine.level else ""
    if binary.cpu:
        answer, evidence = f"{answer}, one model", "its manifest: it was compiled with -march=native"
        reason = "this is another CPU" if binary.cpu != machine.cpu else ""
    elif ENTRY_POINT in elf.defined:
        evidence = "accel-ops built it for every CPU of the architecture"
    if elf.machine != machine.machine:
        reason = f"this machine is {machine.machine}"
    return Requirement("CPU", answer, evidence, reason)


def _releases(names: set[str], known: KnownSymbols, releases: tuple[str, ...]) -> tuple[str, str]:
    """Which of ``releases`` have all ``names``, and which symbols decide."""
    lacking = {release: set[str]() for release in releases}
    for name in names:
        for release in lacking.keys() - known.releases(name):
            lacking[release].add(name)
    fitting = [release for release in releases if not lacking[release]]
    if not fitting:
        best = min(releases, key=lambda release: (len(lacking[release]), -releases.index(release)))
        return "none", f"even {_short(best)} lacks {_some(lacking[best])}"
    reasons = []
    for before, release in pairwise(releases):
        if lacking[before] and not lacking[release]:
            reasons.append(f"new in {_short(release)}: {_some(lacking[before])}")
        if lacking[release] and not lacking[before]:
            reasons.append(f"not in {_short(release)}: {_some(lacking[release])}")
    shared = f"each has {_some(names)}" if names else "it uses none of their symbols"
    return _span(fitting, releases), "; ".join(reasons) or shared


def _span(fitting: Sequence[str], releases: Sequence[str]) -> str:
    """``2.10 to 2.12``, ``2.11 and newer (known up to 2.15)``; with gaps, each by its name."""
    positions = [releases.index(release) for release in fitting]
    if positions[-1] - positions[0] >= len(positions):
        return ", ".join(map(_short, fitting))
    first, last = _short(fitting[0]), _short(fitting[-1])
    if positions[-1] == len(releases) - 1:
        return f"{first} and newer (known up to {last})"
    return f"{first} to {last}" if first != last else f"{first} only"


def _newest(elf: Elf, family: str) -> tuple[str, str]:
    """The newest version of a family, and a symbol that needs it."""
    version = newest_versions(elf.versions).get(family, "")
    if not version:
        return "", ""
    deciding = [name for name in elf.versions if newest_versions([name]).get(family) == version]
    symbols = (name for name in elf.undefined | elf.optional if name.partition("@")[2] in deciding)
    return version, min(symbols, default=min(deciding))


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:2]) + (f" and {len(ordered) - 2} more" if len(ordered) > 2 else "")


def _short(release: str) -> str:
    return ".".join(release.split(".")[:2])
