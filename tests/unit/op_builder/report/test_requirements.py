"""What native extensions need: tables of facts and answers."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.tags import parse_tag

from op_builder.report.extension_file import ExtensionFile, UnreadableFileError, read_file, tag_requirement
from op_builder.report.known_symbols import LIBRARIES, KnownSymbols, known_symbols
from op_builder.report.requirements import Binary, Machine, Requirement, requirements_of
from op_builder.system.elf import Elf

TORCH = ("2.10.0", "2.11.0", "2.12.1")
PYTHON = ("3.10", "3.11", "3.12", "3.13")
C10_CUDA, PYTHON_LIBRARY, CPU_LIBRARY = (
    1 << 7 + LIBRARIES.index(f"lib{name}.so") for name in ("c10_cuda", "torch_python", "torch_cpu")
)
OLD = "_ZN3c103oldEv"
EXPORTED = {
    "torch_call": CPU_LIBRARY | 0b111,
    "torch_new": 0b110,
    OLD: 0b011,
    "_ZN2at3gapEv": 0b101,
    "c10_cuda_call": C10_CUDA | 0b111,
    "THPCall": PYTHON_LIBRARY | 0b111,
    "_ZNSt3newEv": 0b100,
    "PyList_New": 0b1111 << 3,
    "_PyOld": 0b0111 << 3,
    "PyType_New": 0b1110 << 3,
}
KNOWN = KnownSymbols(
    TORCH, PYTHON, {"2.10.0": ["libcudart.so.12"], "2.11.0": [], "2.12.1": []},
    {zlib.crc32(name.encode()): mask for name, mask in EXPORTED.items()},
)  # fmt: skip
FILES = frozenset({"libtorch.so", "libtorch_cpu.so", "libc10.so"})


def machine(python: str = "3.11", lacks: Iterable[str] = (), torch: str = "2.11.0") -> Machine:
    return Machine(
        torch=torch,
        torch_libraries=FILES if torch else frozenset(),
        torch_needs=lambda: frozenset({"libgomp.so.1"}),
        python=python,
        glibc=(2, 31),
        has_feature=lambda name: name == "GLIBC_PRIVATE",
        cxx=frozenset({"GLIBCXX_3.4.21", "GLIBCXX_3.4.28"}),
        machine="x86_64",
        level=3,
        cpu="this",
        missing=lambda names: sorted(set(names).intersection(lacks)),
        library_rejected=lambda name, *_: "" if name == "libhere.so" else "not found",
    )


def binary(
    *undefined: str,
    name: str = "x.so",
    needed: tuple[str, ...] = ("libtorch.so", "libc.so.6"),
    defined: tuple[str, ...] = (),
    cpu: tuple[str, str] = ("x86_64", ""),
    python: str = "",
) -> Binary:
    versions = frozenset(symbol.partition("@")[2] for symbol in undefined if "@" in symbol)
    elf = Elf(cpu[0], needed, (), (), frozenset(defined), frozenset(undefined), frozenset(), versions, cpu[1])
    return Binary(name, elf, python=python)


def requirement(axis: str, of: Binary, on: Machine | None = None) -> Requirement:
    return {found.axis: found for found in requirements_of(of, KNOWN, on or machine())}[axis]


@pytest.mark.parametrize(
    ("of", "answer", "evidence"),
    [
        (binary(needed=("libc.so.6",)), "any, or none", "it uses no symbol and no library of torch"),
        (binary("torch_call"), "2.10 and newer (known up to 2.12)", "each has torch_call; it uses only the stable"),
        (binary("torch_new"), "2.11 and newer (known up to 2.12)", "new in 2.11: torch_new; it uses only the stable C"),
        (binary("torch_call", OLD), "2.10 to 2.11", f"not in 2.12: {OLD}"),
        (binary("torch_new", OLD), "2.11 only", f"new in 2.11: torch_new; not in 2.12: {OLD}"),
        (binary("_ZN2at3gapEv"), "2.10, 2.12", "not in 2.11: _ZN2at3gapEv; new in 2.12: _ZN2at"),
        (binary("torch_newest"), "none", "even 2.12 lacks torch_newest"),
        (binary("_ZN3c104failERKSs"), "none", "it was compiled with _GLIBCXX_USE_CXX11_ABI=0"),
        (binary("torch_call", needed=("libtorch_cuda.so",)), "2.10 and newer (known up to 2.12), CUDA", "libtorch_"),
        (binary("c10_cuda_call"), "2.10 and newer (known up to 2.12), CUDA builds", "c10_cuda_call; each has"),
        (binary("_ZN3c103hipEv", needed=("libc10_hip.so",)), "not known, HIP builds", "libc10_hip.so; the lists hold"),
        (binary("torch_call", needed=("libc.so.6",)), "none", "it names no library (DT_NEEDED) that defines torch_"),
        (binary("THPCall"), "none", "it names no library (DT_NEEDED) that defines THPCall"),
        (binary("THPCall", needed=("libtorch_python.so",)), "2.10 and newer", "each has THPCall"),
        (binary("THPCall", needed=("libtorch.so", "libfoo.so")), "2.10 and newer", "each has THPCall"),
    ],
)  # fmt: skip
def test_torch(of: Binary, answer: str, evidence: str) -> None:
    found = requirement("torch", of)
    assert found.answer.startswith(answer)
    assert found.evidence.startswith(evidence)


CUDA_12 = "libcudart.so.12"
MODULE = ("PyInit_x",)
ALL = {"3.10", "3.11", "3.13t"}
NOT_FREE = ALL - {"3.13t"}


@pytest.mark.parametrize(
    ("of", "answer", "evidence", "here"),
    [
        (binary("torch_call"), "any", "it uses no symbol of Python", ALL),
        (binary("PyList_New"), "3.10 and newer (known up to 3.13)", "each has PyList_New", ALL),
        (binary("_PyOld", defined=MODULE), "3.10 to 3.12", "not in 3.13: _PyOld; its name does", ALL),
        (binary(name="a/x.cpython-311-x86_64-linux.so", defined=MODULE), "3.11 only", "its name: cpython", {"3.11"}),
        (binary(name="x.cpython-313t-x86_64-linux-gnu.so", defined=MODULE), "3.13t only", "its name", {"3.13t"}),
        (binary("PyList_New", name="x.cpython-310.so"), "3.10 and newer (known", "each", ALL),
        (binary("PyType_New", name="x.abi3.so", defined=MODULE), "3.11 and newer, except", "its name", NOT_FREE),
        (binary("_PyOld", name="x.abi3.so", defined=MODULE), "3.10 to 3.12, except", "its name or tag: abi3", NOT_FREE),
        (binary(defined=MODULE, python="3.12+"), "3.12 and newer, except", "its name or tag: abi3", NOT_FREE),
        (binary(defined=MODULE, python="3.10"), "3.10 only", "the wheel's tag", {"3.10"}),
        (binary(needed=("libpython3.10.so.1.0",), defined=MODULE), "3.10 only", "libpython3.10 (DT_NEEDED)", {"3.10"}),
        (binary("_Py_DecRefShared", defined=MODULE), "free-threaded builds", "needs _Py_DecRef", ALL),
    ],
)  # fmt: skip
def test_python(of: Binary, answer: str, evidence: str, here: set[str]) -> None:
    found = requirement("Python", of)
    assert found.answer.startswith(answer)
    assert found.evidence.startswith(evidence)
    assert {python for python in ALL if not requirement("Python", of, machine(python)).reason} == here


def feature(version: str, stack: bool = False) -> Binary:
    of = binary()
    return of._replace(elf=of.elf._replace(versions=frozenset({version}), has_executable_stack=stack))


NEAR = frozenset({"libnear.so"})
OPENED_BY_PACKAGE = binary(needed=("libnear.so",))._replace(siblings=NEAR, preloaded=NEAR)


@pytest.mark.parametrize(
    ("axis", "of", "answer", "evidence", "reason"),
    [
        ("glibc", binary("f@GLIBC_2.4", "g@GLIBC_2.29"), "2.29 and newer", "g@GLIBC_2.29", ""),
        ("glibc", binary("f@GLIBC_2.34"), "2.34 and newer", "f@GLIBC_2.34", "the C library is 2.31"),
        ("glibc", binary(), "any", "it needs no version", ""),
        ("glibc", feature("GLIBC_ABI_DT_RELR"), "2.36 and newer", "GLIBC_ABI_DT_RELR", "the C library is 2.31"),
        ("glibc", feature("GLIBC_PRIVATE"), "any with GLIBC_PRIVATE", "it needs no version", ""),
        ("glibc", feature("GLIBC_ABI_X"), "any with GLIBC_ABI_X", "it needs", "the C library lacks GLIBC_ABI_X"),
        ("glibc", feature("GLIBC_2.14", stack=True), "2.14 to 2.40", "GLIBC_2.14; newer ones refuse an exec", ""),
        ("glibc", binary(needed=("libc.musl-x86_64.so.1",)), "none: musl", "libc.musl", "the C library is glibc"),
        ("libstdc++", binary("_ZSta@GLIBCXX_3.4.21"), "as on systems with glibc 2.24 and newer", "_ZSta@GLIBCXX", ""),
        ("libstdc++", binary("_ZSta@GLIBCXX_3.4.29"), "as on systems with", "_ZSta", "libstdc++ has no GLIBCXX_3.4.29"),
        ("libstdc++", binary("_ZNSt3newEv"), "any", "where it lacks _ZNSt3newEv, torch 2.12 and newer", ""),
        ("libraries", binary(needed=("libav.so.1",)), "libav.so.1", "it names them", "libav.so.1: not found"),
        ("libraries", binary(needed=("libhere.so", "libgomp.so.1")), "libhere.so, libgomp.so.1", "it names them", ""),
        ("libraries", binary(needed=(CUDA_12,)), CUDA_12, f"{CUDA_12} is in CUDA builds of", f"{CUDA_12}: not found"),
        ("libraries", OPENED_BY_PACKAGE, "those of its wheel", "its package must open libnear.so, which", ""),
        ("CPU", binary(), "x86_64", "the file is marked with no", ""),
        ("CPU", binary(cpu=("aarch64", "")), "aarch64", "the file is marked with no", "this machine is x86_64"),
        ("CPU", binary(cpu=("x86_64", "x86-64-v3")), "x86-64-v3", "the file is marked with this level", ""),
        ("CPU", binary(cpu=("x86_64", "x86-64-v4")), "x86-64-v4", "the file is marked", "the CPU is x86-64-v3"),
        ("CPU", binary()._replace(cpu="this"), "x86_64, one model", "its manifest: it was compiled", ""),
        ("CPU", binary()._replace(cpu="other"), "x86_64, one model", "its manifest", "this is another CPU"),
    ],
)  # fmt: skip
def test_the_system(axis: str, of: Binary, answer: str, evidence: str, reason: str) -> None:
    found = requirement(axis, of)
    assert found.answer.startswith(answer)
    assert found.evidence.startswith(evidence)
    assert found.reason == reason


@pytest.mark.parametrize(
    ("axis", "of", "on", "reason"),
    [
        ("torch", binary("torch_call"), machine(torch=""), "torch is not installed"),
        ("torch", binary("torch_call"), machine(lacks=["torch_call"]), "torch 2.11.0 lacks torch_call"),
        ("torch", binary(needed=("libtorch_cuda.so",)), machine(), "torch 2.11.0 has no libtorch_cuda.so"),
        ("torch", binary("torch_new"), machine(torch="2.99"), ""),  # newer than the lists: its own libraries decide
        ("libraries", binary("acme"), machine(lacks=["acme"]), "no library that it names defines acme"),
    ],
)  # fmt: skip
def test_the_installed_libraries_decide_about_this_machine(axis: str, of: Binary, on: Machine, reason: str) -> None:
    assert requirement(axis, of, on).reason == reason


@pytest.mark.parametrize(
    ("tag", "of", "evidence"),
    [
        ("py3-none-manylinux_2_28_x86_64", binary("f@GLIBC_2.28"), "fits its libraries"),
        ("py3-none-manylinux2014_x86_64", binary("f@GLIBC_2.28"), "the tag says glibc 2.17, but x.so needs 2.28: f@"),
        ("py3-none-manylinux_2_24_x86_64.manylinux_2_28_x86_64", binary("f@GLIBC_2.27"), "the tag says glibc 2.24"),
        ("py3-none-manylinux_2_28_x86_64", binary("f@GLIBCXX_3.4.29"), "the tag says glibc 2.28, but x.so needs 2.34"),
        ("py3-none-any", binary(), "the tag says any, but x.so is for x86_64"),
        ("py3-none-linux_aarch64", binary(), "the tag says linux_aarch64, but x.so is for x86_64"),
        ("cp312-cp312-linux_x86_64", binary(name="x.cpython-310.so", defined=MODULE), "the tag says cp312-cp312"),
        ("cp310-abi3-linux_x86_64", binary(name="x.cpython-310.so", defined=MODULE), "the tag says abi3, but x"),
    ],
)  # fmt: skip
def test_a_tag_that_does_not_fit_the_libraries_is_an_error(tag: str, of: Binary, evidence: str) -> None:
    tags = parse_tag(tag)
    found = tag_requirement(ExtensionFile(Path(f"x-1-{tag}.whl"), (of,), tags), tags)
    assert found is not None
    assert found.evidence.startswith(evidence)
    assert bool(found.reason) == (evidence != "fits its libraries")


def archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.so", b"", "x.so is damaged: it is empty"),
        ("x.so", b"just\0data", "it is not an ELF file"),
        ("x.so", b"just text", "it is a text that begins with 'just text'"),
        ("x.so", b"!<thin>\nx", "it is a static library"),
        ("x-1-py3-none-any.whl", b"Entry not found", "it is a text that begins with 'Entry not found'"),
        ("x.so", b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS"),
        ("x-1-py3-none-any.whl", b"<!DOCTYPE html>", "it is a web page"),
        ("x.pyd", b"MZ\x90", "it is a Windows program"),
        ("x.dylib", b"\xcf\xfa\xed\xfe", "it is a macOS library"),
        ("x.so", b"\x7fELF\x02\x01\x01" + bytes(9), "x.so is damaged"),
        ("x-1-py3-none-any.whl", b"PK", "is a damaged wheel"),
        ("x-1-py3-none-any.whl", archive({"/lib/x.so": b""}), "outside of the directory"),
        ("x-1-py3-none-any.whl", archive({"x/../../x.so": b""}), "outside of the directory"),
        ("x-1-py3-none-any.whl", archive({"x.so": bytes(100 << 20)}), "bytes expand to 104857600"),
        ("x.zip", b"PK\x05\x06" + bytes(18), "is a zip archive, but its name is not a wheel's"),
        ("", b"", "is not a file"),
        ("missing.so", None, "cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_extension_gets_one_clear_line(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if name and content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFileError) as caught:
        read_file(tmp_path / name)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_the_shipped_lists_know_symbols_that_came_and_went() -> None:
    known = known_symbols()
    assert known.releases("torch_call_dispatcher") >= set(known.torch)
    assert known.releases("PyType_GetName") == {"3.11", "3.12", "3.13", "3.14", "3.15"}
    assert known.releases("PyType_Freeze") == {"3.14", "3.15"}
    assert known.releases("_PyThreadState_UncheckedGet") == {"3.10", "3.11", "3.12"}
    assert known.releases("no_such_symbol") == set()
    assert known.needs_cuda("aoti_torch_get_current_cuda_stream")
    assert not known.needs_cuda("torch_call_dispatcher")
