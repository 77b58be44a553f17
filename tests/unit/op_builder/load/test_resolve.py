"""The decision of how to load an op, as a table: facts in, candidates with their rejections out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from op_builder.cache.machine import machine_rejection
from op_builder.cache.manifest import Manifest
from op_builder.cache.store import Entry
from op_builder.errors import AccelError
from op_builder.load.resolve import PREBUILT, WITHOUT_PREBUILT, Candidate, resolve
from op_builder.system.outcomes import Rejection
from tests.support import entries

MACHINE: dict[str, Any] = {
    "platform": "linux x86_64",
    "cpu": "this cpu",
    "glibc": "2.36",
    "torch_release": (2, 13),
    "torch_version": "2.13.0+cpu",
    "python_abi": ".cpython-311.so",
    "cuda_capabilities": [],
    "sycl": SimpleNamespace(major=9, version="9.0.0"),
    "tvm_ffi": "0.1.5",
    "cxx_library": frozenset(),
}
MANIFEST = entries.manifest(platform="linux x86_64")
NEWER_GLIBC = {"needs": {"GLIBC": "2.38"}}
FOR_PYTHON = {"key_parts": {"python abi": ".cpython-311.so"}}
FLAGS = '["-DTORCH_TARGET_VERSION=0x020f000000000000"]'
OLDER_FLAGS, ODD_FLAGS = FLAGS.replace("0x020f", "0x0209"), '["-DTORCH_TARGET_VERSION=0xno"]'


def manifest(key_parts: dict[str, str] | None = None, **changes: Any) -> Manifest:
    return MANIFEST._replace(key_parts={**MANIFEST.key_parts, **(key_parts or {})}, **changes)


@pytest.mark.parametrize(
    ("binary", "machine", "reason"),
    [
        ({}, {}, ""),
        ({}, {"platform": "linux aarch64"}, "built for linux x86_64, this is linux aarch64"),
        ({"key_parts": {"cpu": "that cpu"}}, {}, "another machine's CPU"),
        ({"key_parts": {"cpu": "this cpu"}}, {}, ""),
        (NEWER_GLIBC, {}, "needs glibc 2.38, this is 2.36"),
        (NEWER_GLIBC, {"glibc": "2.38"}, ""),
        (NEWER_GLIBC, {"glibc": ""}, ""),
        ({"needs": {"GLIBC": "2.4"}}, {"glibc": "2.36"}, ""),
        ({"key_parts": {"c++ flags": FLAGS}}, {}, "needs torch >=2.15"),
        ({"key_parts": {"c++ flags": FLAGS}}, {"torch_release": (2, 15)}, ""),
        ({"key_parts": {"c++ flags": OLDER_FLAGS}}, {"torch_release": (2, 9)}, "needs torch >=2.10"),
        ({"key_parts": {"c++ flags": ODD_FLAGS}}, {"torch_release": (2, 9)}, "needs torch >=2.10"),
        ({"key_parts": {"c++ flags": ODD_FLAGS}}, {"torch_release": (2, 10)}, ""),
        (FOR_PYTHON, {}, ""),
        ({**FOR_PYTHON, "torch": "2.12.1"}, {}, "built with torch 2.12.1"),
        (FOR_PYTHON, {"python_abi": ".cpython-312.so"}, "Python ABI .cpython-311.so"),
        ({"torch": ""}, {"torch_release": (2, 9)}, ""),
        ({**FOR_PYTHON, "torch": ""}, {"torch_release": (2, 9)}, ""),
        ({**FOR_PYTHON, "torch": ""}, {"python_abi": ".cpython-312.so"}, "Python ABI .cpython-311.so"),
        ({"key_parts": {"cuda archs": "9.0"}}, {"cuda_capabilities": [(8, 0)]}, "device 0 is 8.0"),
        ({"key_parts": {"cuda archs": "9.0"}}, {}, ""),
        ({"key_parts": {"cuda archs": "8.6"}}, {"cuda_capabilities": [(8, 6), (8, 0)]}, "device 1 is 8.0"),
        ({"key_parts": {"cuda archs": "8.0a"}}, {"cuda_capabilities": [(8, 0)]}, ""),
        ({"key_parts": {"cuda archs": "7.5+PTX"}}, {"cuda_capabilities": [(8, 0)]}, ""),
        ({"key_parts": {"cuda archs": "7.5;8.0"}}, {"cuda_capabilities": [(8, 0)]}, ""),
        ({"needs": {"libsycl.so": "9"}}, {}, ""),
        ({"needs": {"libsycl.so": "8"}}, {}, "libsycl.so.8, the installed SYCL runtime is 9.0.0"),
        ({"needs": {"libsycl.so": "9"}}, {"sycl": None}, "no SYCL runtime is installed"),
        ({"kind": "tvm_ffi", "key_parts": {"library tvm_ffi": "0.1.5"}}, {}, ""),
        ({"kind": "tvm_ffi", "key_parts": {"library tvm_ffi": "0.1.4"}}, {}, "apache-tvm-ffi 0.1.4, this is 0.1.5"),
        ({"kind": "tvm_ffi", "key_parts": {"library tvm_ffi": "0.1.4"}}, {"tvm_ffi": ""}, "cannot be imported"),
        ({"needs": {"GLIBCXX": "3.4.32", "CXXABI": "1.3"}}, {}, ""),
        (
            {"needs": {"GLIBCXX": "3.4.32", "CXXABI": "1.3"}},
            {"cxx_library": frozenset({"CXXABI_1.3", "GLIBCXX_3.4.30"})},
            "needs GLIBCXX_3.4.32, which",
        ),
    ],
)
def test_a_binary_must_fit_the_machine(binary: dict[str, Any], machine: dict[str, Any], reason: str) -> None:
    found = machine_rejection(manifest(**binary), SimpleNamespace(**{**MACHINE, **machine}))
    assert (found.reason if found is not None else "") == reason or (reason and reason in str(found))


def entry(name: str, **changes: Any) -> Entry:
    return Entry(Path(name), manifest(**changes))


class GivenFacts(NamedTuple):
    """The facts of a row in the table."""

    opened_entries: tuple[tuple[Entry, Rejection | None], ...] = ()
    in_wheels: tuple[Candidate, ...] = ()
    in_cache: tuple[tuple[Entry, Rejection | None], ...] = ()
    any_compiler: bool = False
    unavailable: Rejection | None = None
    no_build: Rejection | None = None
    no_load: Rejection | None = None
    no_plan: AccelError | None = None
    is_python: bool = False
    machine: Any = SimpleNamespace(**MACHINE)

    def opened(self) -> Iterator[tuple[Entry, Rejection | None]]:
        return iter(self.opened_entries)

    def prebuilt(self) -> Iterator[Candidate]:
        return iter(self.in_wheels)

    def cached(self) -> Iterator[tuple[Entry, Rejection | None]]:
        return iter(self.in_cache)

    def loading(self) -> Rejection | None:
        return self.no_load

    def building(self) -> Rejection | None:
        if self.no_plan is not None:
            raise self.no_plan
        return self.no_build or self.no_load


NO, NO_PLAN = Rejection("no"), AccelError("no plan")
OPEN, WHEEL, KEPT = entry("open"), entry("wheel"), entry("kept")
EVERYWHERE = GivenFacts(((OPEN, None),), (Candidate(PREBUILT, Path("wheel"), WHEEL),), ((KEPT, None),))


@pytest.mark.parametrize(
    ("facts", "accepted"),
    [
        (GivenFacts(), ["build"]),
        (GivenFacts(no_build=NO), []),
        (GivenFacts(no_plan=NO_PLAN), []),
        (GivenFacts(unavailable=NO), []),
        (EVERYWHERE, ["loaded", "prebuilt", "cached", "build"]),
        (EVERYWHERE._replace(unavailable=NO), []),
        (EVERYWHERE._replace(no_build=NO), ["loaded", "prebuilt", "cached"]),
        (EVERYWHERE._replace(no_load=NO), ["loaded"]),
        (GivenFacts(is_python=True), ["python"]),
        (GivenFacts(is_python=True, no_build=NO), []),
        (EVERYWHERE._replace(opened_entries=((OPEN, NO),)), ["prebuilt", "cached", "build"]),
        (EVERYWHERE._replace(in_cache=((KEPT, NO), (OPEN, None))), ["loaded", "prebuilt", "cached", "build"]),
        (
            EVERYWHERE._replace(in_wheels=(Candidate(PREBUILT, Path("wheel"), None, NO),)),
            ["loaded", "cached", "build"],
        ),
        (
            EVERYWHERE._replace(in_wheels=(Candidate(PREBUILT, Path("wheel"), WHEEL, NO),)),
            ["loaded", "cached", "build"],
        ),
        (
            EVERYWHERE._replace(in_wheels=(Candidate(PREBUILT, Path("wheel"), entry("wheel", **NEWER_GLIBC)),)),
            ["loaded", "cached", "build"],
        ),
        # Without a compiler the cache may hold entries of another machine's compiler, which must fit this one.
        (
            GivenFacts(in_cache=((entry("newer", **NEWER_GLIBC), None), (KEPT, None)), any_compiler=True, no_build=NO),
            ["cached"],
        ),
    ],
)
def test_the_candidates_come_in_order_and_each_is_accepted_or_rejected(facts: GivenFacts, accepted: list[str]) -> None:
    candidates = list(resolve(facts))
    assert [each.way for each in candidates if each.rejection is None] == accepted
    assert all(each.rejection.reason for each in candidates if each.rejection is not None)
    assert (candidates[-1].way, candidates[-1].error) == ("python" if facts.is_python else "build", facts.no_plan)
    without = [each.way for each in resolve(facts, WITHOUT_PREBUILT) if each.rejection is None]
    assert without == [way for way in accepted if way != "prebuilt"]


def test_a_fact_is_asked_for_only_if_no_earlier_candidate_was_taken() -> None:
    class Unasked(GivenFacts):
        def prebuilt(self) -> Iterator[Candidate]:
            raise AssertionError("the loaded op suffices")

    first = next(iter(resolve(Unasked(*EVERYWHERE))))
    assert (first.way, first.rejection) == ("loaded", None)
