"""Reading libraries for Linux and macOS, whole and damaged ones."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from op_builder.errors import AccelError
from op_builder.report.extension_file import read_file
from op_builder.system import elf, macho
from tests.support.compilers import needs_gxx, shared_library
from tests.support.mutations import damaged, overwritten

SOURCE = """
#include <string>
__attribute__((weak)) void perhaps();
std::string longer(std::string text) { if (perhaps) perhaps(); return text + "x"; }
"""
# For arm64: LC_BUILD_VERSION, LC_LOAD_DYLIB, LC_SYMTAB with the symbols _f (defined) and _malloc, and their names.
MACOS = struct.pack(
    "<8I6I6I8s6I IBBHQ IBBHQ 20s",
    *(0xFEEDFACF, 0x0100000C, 0, 6, 3, 80, 0, 0),
    *(0x32, 24, 1, 11 << 16, 11 << 16, 0),
    *(0xC, 32, 24, 0, 0, 0, b"libSys\0"),
    *(0x2, 24, 112, 2, 144, 20),
    *(1, 0x0F, 1, 0, 0),
    *(4, 0x01, 0, 1 << 8, 0),
    b"\0_f\0_malloc\0",
)


@pytest.mark.parametrize(
    ("number", "bits", "order", "name"),
    [
        (62, 64, "<", "x86_64"),
        (183, 64, "<", "aarch64"),
        (3, 32, "<", "i686"),
        (21, 64, ">", "ppc64"),
        (21, 64, "<", "ppc64le"),
    ],
)
def test_an_architecture_has_its_name_in_wheel_tags(number: int, bits: int, order: str, name: str) -> None:
    marks = bytes([0x7F, *b"ELF", bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    word = "Q" if bits == 64 else "I"
    header = struct.pack(f"{order}HHI3{word}I6H", 3, number, 1, 0, 0, 0, 0, 52 + 12 * (bits // 64), 0, 0, 0, 0, 0)
    read = elf.read_elf(marks + header)
    assert (read.machine, read.unusable) == (name, "it has no dynamic table")


@pytest.mark.parametrize("without_sections", [False, True])
def test_torchs_libraries_are_read_as_lief_reads_them(without_sections: bool) -> None:
    lief = pytest.importorskip("lief")
    for path in (Path(torch.__file__).parent / "lib").glob("lib[cst]*.so"):
        if path.stat().st_size > 100 << 20:
            continue
        content = bytearray(path.read_bytes())
        expected = lief.ELF.parse(io.BytesIO(bytes(content)))
        symbols = [symbol for symbol in expected.dynamic_symbols if symbol.name and symbol.binding.name != "LOCAL"]
        if without_sections:
            content[40:48] = bytes(8)  # e_shoff
            content[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
        read = elf.read_elf(bytes(content))
        assert read.defined == {symbol.name for symbol in symbols if symbol.shndx}
        assert read.needed == tuple(map(str, expected.libraries))
        auxiliary = [
            (symbol.name, getattr(symbol.symbol_version, "symbol_version_auxiliary", None)) for symbol in symbols
        ]
        versioned = {name if version is None else f"{name}@{version.name}" for name, version in auxiliary}
        assert read.undefined | read.optional == versioned - read.defined
        versions = expected.symbols_version_requirement
        assert read.versions == {one.name for each in versions for one in each.get_auxiliary_symbols()}


@needs_gxx
@pytest.mark.parametrize("hash_style", ["gnu", "sysv"])
def test_symbols_are_found_by_each_hash_table_and_without_exports_by_relocations(
    tmp_path: Path, hash_style: str
) -> None:
    flags = (f"-Wl,--hash-style={hash_style}", "-Wl,-z,noexecstack", "-fvisibility=hidden", "-nostdlib")
    hidden = shared_library(tmp_path / "x.so", "void acme(); void f() { acme(); }", *flags)
    assert "_Z4acmev" in elf.read_library(hidden).undefined
    named = shared_library(tmp_path / "x.so", SOURCE, flags[0])
    assert "_Z7perhapsv" in elf.read_library(named).optional
    assert "_Z6longerNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE" in elf.read_library(named).defined


@needs_gxx
def test_the_newest_version_counts_also_those_without_a_symbol(tmp_path: Path) -> None:
    source = 'static int x; int* y = &x; extern "C" int puts(char*); void f() { puts(nullptr); }'
    packed = shared_library(tmp_path / "x.so", source, "-Wl,-z,pack-relative-relocs")
    assert elf.newest_versions(elf.read_library(packed).versions)["GLIBC"] == "2.36"  # GLIBC_ABI_DT_RELR
    assert elf.newest_versions({"GLIBC_2.4", "GLIBC_2.14", "GLIBC_PRIVATE", f"GLIBC_{'9' * 5000}"}) == {"GLIBC": "2.14"}


@pytest.mark.parametrize("place", [7, 8])
def test_a_library_for_another_system_has_a_reason(tmp_path: Path, place: int) -> None:
    content = bytearray(shared_library(tmp_path / "x.so", SOURCE).read_bytes())
    content[place] = 9
    assert "another system" in elf.read_elf(bytes(content)).unusable


def test_a_library_for_macos_is_read(tmp_path: Path) -> None:
    """tests/system/op_builder/test_ziglang.py reads a real one."""
    (tmp_path / "x.dylib").write_bytes(MACOS)
    assert macho.read_library(tmp_path / "x.dylib") == ({"f"}, {"malloc@libSys"}, "11.0")


def survives(read: Callable[[bytes], object], content: bytes) -> None:
    variants = [*overwritten(content, 3000, seed=7), *damaged(content, 300, seed=7)]
    refused = 0
    for variant in variants:
        try:
            read(variant)
        except (ValueError, AccelError):
            refused += 1
    assert 0 < refused < len(variants)


@needs_gxx
def test_each_damaged_library_is_read_or_refused(tmp_path: Path) -> None:
    survives(elf.read_elf, shared_library(tmp_path / "x.so", SOURCE).read_bytes())


def test_each_damaged_library_for_macos_is_read_or_refused(tmp_path: Path) -> None:
    def read(content: bytes) -> object:
        (tmp_path / "x.dylib").write_bytes(content)
        return macho.read_library(tmp_path / "x.dylib")

    survives(read, MACOS)


@needs_gxx
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_each_damaged_wheel_is_read_or_refused(tmp_path: Path, method: int) -> None:
    library = shared_library(tmp_path / "x.so", "int f() { return 1; }", "-nostdlib", "-s").read_bytes()
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", method) as archive:
        archive.writestr("x/manifest.json", '{"key_parts": {"cpu": "1"}}')
        archive.writestr("x/x.so", library[:0x1200] if method == zipfile.ZIP_STORED else library)

    def read(content: bytes) -> object:
        wheel.write_bytes(content)
        return read_file(wheel)

    survives(read, wheel.read_bytes())


@needs_gxx
def test_names_that_share_their_ends_cannot_fill_the_memory(tmp_path: Path) -> None:
    functions = "".join(f"void function_{number}() {{}}" for number in range(300))
    content = shared_library(tmp_path / "x.so", functions).read_bytes()
    assert len(elf.read_elf(content).defined) == 300
    first, last = content.index(b"\0_Z") + 1, content.rindex(b"function_", 0, 0x4000)
    with pytest.raises(ValueError, match="names overlap"):
        elf.read_elf(content[:first] + b"x" * (last - first) + content[last:])
