"""A library for Linux as the dynamic loader reads it: by program headers and the dynamic table, without sections.

The formats are those of the System V gABI and, for GNU's hash table, versions and properties, of glibc's ``elf.h``.
"""

from __future__ import annotations

import mmap
import os.path
import re
import struct
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from op_builder import env
from op_builder.system.file_kinds import MARKS_BYTES, kind_of

_PROGRAM, _SHARED = 2, 3  # ET_EXEC, ET_DYN
_KINDS = {1: "an object file", _PROGRAM: "a program", 4: "a core dump"}
_LOAD, _DYNAMIC, _NOTE, _STACK, _PROPERTY = 1, 2, 4, 0x6474E551, 0x6474E553
_NEEDED, _HASH, _STRTAB, _SYMTAB, _RELA, _RELASZ, _RPATH = 1, 4, 5, 6, 7, 8, 15
_REL, _RELSZ, _PLTREL, _JMPREL, _PLTRELSZ, _RUNPATH = 17, 18, 20, 23, 2, 29
_GNU_HASH, _VERSYM, _FLAGS_1, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFB, 0x6FFFFFFE, 0x6FFFFFFF
_VERDEF, _VERDEFNUM, _FILTER = 0x6FFFFFFC, 0x6FFFFFFD, 0x7FFFFFFF  # a filtered library is loaded like a needed one
_NOOPEN, _PIE = 0x40, 0x08000000  # of DF_1
_SYSTEM_V, _GNU = 0, 3  # EI_OSABI
_WEAK_VERSION = 2  # VER_FLG_WEAK: the loader accepts a library without it
_X86_ISA_NEEDED = 0xC0008002
_WHEEL_NAMES = {  # e_machine: the architecture in a wheel's tag, for 64 and for 32 bits
    62: ("x86_64", "x32"),
    183: ("aarch64", "aarch64"),
    3: ("i686", "i686"),
    40: ("armv7l", "armv7l"),
    243: ("riscv64", "riscv32"),
    22: ("s390x", "s390"),
    258: ("loongarch64", "loongarch64"),
}
# Versions that stand for features of the loader, and the first release with each.
_NUMBERED = {"GLIBC_ABI_DT_RELR": "GLIBC_2.36"}
_OTHERS = {
    b"MZ": "a Windows program",
    **dict.fromkeys((b"!<arch>\n", b"!<thin>\n"), "a static library"),
    **dict.fromkeys((b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe"), "a macOS library"),
}
_LONGEST_NAME = 1 << 16


class NotElfError(ValueError):
    """A file is not a library for Linux; ``remedy`` is what to do about a known other format, else empty."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(reason)


class Elf(NamedTuple):
    """What the dynamic loader reads of a file.

    Attributes:
        machine: as in wheel tags: ``x86_64``, ``aarch64``, ``armv7l``; the number of a rare one.
        needed: libraries (``DT_NEEDED``, ``DT_FILTER``).
        rpath: where it looks for them before ``LD_LIBRARY_PATH``, with ``$ORIGIN``. ``runpath``: where after it.
        defined: names of defined symbols.
        undefined: names that must be found, with their version: ``memcpy@GLIBC_2.14``.
        optional: those that may be missing (weak).
        versions: all versions that it needs of libraries, also without a symbol: ``GLIBC_2.14``, ``GLIBC_ABI_DT_RELR``.
        versions_of: those of each library, as (library, version).
        provides: the versions that it defines.
        isa: the x86-64 level that the file is marked with, such as ``x86-64-v3``; empty without a mark.
        unusable: why no machine can open it: ``it is a program``; empty for a shared library.
        has_executable_stack: whether it asks for one.
    """

    machine: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    defined: frozenset[str]
    undefined: frozenset[str]
    optional: frozenset[str]
    versions: frozenset[str]
    isa: str
    unusable: str = ""
    has_executable_stack: bool = False
    versions_of: frozenset[tuple[str, str]] = frozenset()
    provides: frozenset[str] = frozenset()


def read_library(path: Path) -> Elf:
    """The facts of a library; of a large one only the tables are read.

    Raises:
        OSError: the file cannot be read.
        NotElfError, ValueError: as for :func:`read_elf`.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it is empty")
        # A private mapping: some network and user-space file systems refuse shared ones.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
            return read_elf(content)


def read_elf(content: bytes | mmap.mmap) -> Elf:
    """The same for a file's content.

    Raises:
        NotElfError: it is another kind of file.
        ValueError: it is damaged.
    """
    if content[:4] != b"\x7fELF":
        start = content[:8]
        other = next((kind for magic, kind in _OTHERS.items() if start.startswith(magic)), "")
        found = kind_of(content[:MARKS_BYTES], may_be_text=bool(other))
        kind, remedy = found or (other or "not an ELF file", "")
        raise NotElfError(f"it is {kind}" if content else "it is empty", remedy)
    try:
        return _read(_File(content))
    except struct.error:  # a table reaches beyond the end
        raise ValueError("a part of it is missing") from None


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    size: int
    alignment: int


class _File:
    """An ELF file's content, and where the loader maps it."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        if len(content) < 20 or content[4] not in (1, 2) or content[5] not in (1, 2):
            raise ValueError("its header is not valid")
        self.content = content
        # No part is read twice, but names may share their ends. In a hostile file all may overlap.
        self.reads_left = self.characters_left = 4 * len(content)
        self.is_64_bit, self.is_little = content[4] == 2, content[5] == 1
        self.word_bytes = 8 if self.is_64_bit else 4
        self.type, self.machine, _, _, first, _, _, _, size, count = self.unpack("HHIAAAIHHH", 16)
        self.segments = []
        for at in range(first, first + size * count, size) if size else ():
            if self.is_64_bit:
                kind, flags, offset, address, _, length, _, alignment = self.unpack("IIQQQQQQ", at)
            else:
                kind, offset, address, _, length, _, flags, alignment = self.unpack("8I", at)
            self.segments.append(_Segment(kind, flags, offset, address, length, alignment))
        self.names: dict[int, str] = {}

    def format(self, fields: str) -> str:
        """A format of ``struct`` in this file's byte order; ``A`` is an address or a word of its size."""
        return ("<" if self.is_little else ">") + fields.replace("A", "Q" if self.is_64_bit else "I")

    def unpack(self, fields: str, at: int) -> tuple[int, ...]:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise ValueError("its tables overlap")
        return struct.unpack_from(self.format(fields), self.content, _position(at))

    def table(self, fields: str, at: int, count: int) -> Iterator[tuple[int, ...]]:
        """``count`` records, one after the other."""
        layout = self.format(fields)
        content = self.content[_position(at) : at + count * struct.calcsize(layout)]
        if len(content) < count * struct.calcsize(layout):
            raise ValueError("a part of it is missing")
        return struct.iter_unpack(layout, content)

    def offset(self, address: int) -> int:
        """The place in the file of what is mapped at ``address``."""
        for each in self.segments:
            if each.kind == _LOAD and each.address <= address < each.address + each.size:
                return address - each.address + each.offset
        raise ValueError(f"the address {address:#x} is outside of its segments")

    def name(self, at: int) -> str:
        if at not in self.names:
            end = self.content.find(b"\0", _position(at), at + _LONGEST_NAME)
            if end < 0:
                raise ValueError("a name in it has no end")
            self.count(end - at)
            self.names[at] = self.content[at:end].decode(errors="backslashreplace")
        return self.names[at]

    def count(self, characters: int) -> None:
        """Raise ValueError if the names that were read are longer than the file."""
        self.characters_left -= characters
        if self.characters_left < 0:
            raise ValueError("its names overlap")


def _position(at: int) -> int:
    if at >= 1 << 62:
        raise ValueError("a part of it is missing")
    return at


def _read(file: _File) -> Elf:
    listed = _dynamic_tags(file)
    tags = dict(listed)  # the loader keeps the last one of a kind
    strings = file.offset(tags[_STRTAB]) if _STRTAB in tags else 0
    versions = _needed_versions(file, tags, strings)
    numbers = file.offset(tags[_VERSYM]) if _VERSYM in tags else None
    defined: set[str] = set()
    undefined: set[str] = set()
    optional: set[str] = set()
    for index, (name, bind, is_defined) in enumerate(_symbols(file, tags)):
        if not name or not bind:  # a local symbol
            continue
        text = file.name(strings + name)
        if is_defined:
            defined.add(text)
            continue
        number = 0 if numbers is None else file.unpack("H", numbers + 2 * index)[0] & 0x7FFF
        if number in versions:
            text = f"{text}@{versions[number].name}"
            file.count(len(text))
        (optional if bind == 2 else undefined).add(text)

    def directories(tag: int) -> tuple[str, ...]:
        return tuple(filter(None, file.name(strings + tags[tag]).split(":"))) if tag in tags else ()

    isa = max(_needed_isas(file), default=0)
    stack = [segment.flags for segment in file.segments if segment.kind == _STACK]
    names = _WHEEL_NAMES.get(file.machine)
    if file.machine == 21:  # PowerPC names its byte order
        names = ("ppc64le", "ppcle") if file.is_little else ("ppc64", "ppc")
    machine = names[not file.is_64_bit] if names else f"machine number {file.machine}"
    return Elf(
        machine,
        tuple(file.name(strings + value) for tag, value in listed if tag in (_NEEDED, _FILTER)),
        () if _RUNPATH in tags else directories(_RPATH),
        directories(_RUNPATH),
        frozenset(defined),
        frozenset(undefined),
        frozenset(optional),
        frozenset(version.name for version in versions.values() if not version.is_weak),
        "" if not isa else "x86-64" if isa == 1 else f"x86-64-v{isa.bit_length()}",
        _reason_unusable(file, tags),
        bool(stack[-1] & 1) if stack else machine in ("x86_64", "i686"),  # their ABI's default
        frozenset((version.library, version.name) for version in versions.values() if not version.is_weak),
        frozenset(_defined_versions(file, tags, strings)),
    )


def _reason_unusable(file: _File, tags: dict[int, int]) -> str:
    if file.type != _SHARED:
        return f"it is {_KINDS.get(file.type, 'neither a library nor a program')}"
    system, version = file.content[7:9]
    if system not in (_SYSTEM_V, _GNU) or (version and system != _GNU):
        return f"it is for another system (OS ABI {system}, version {version})"
    if tags.get(_FLAGS_1, 0) & _PIE:
        return "it is a program"
    if tags.get(_FLAGS_1, 0) & _NOOPEN:
        return "it may only be loaded with the program that names it: it was linked with -z nodlopen"
    kinds = {segment.kind for segment in file.segments}
    return "" if {_LOAD, _DYNAMIC} <= kinds else "it has no dynamic table"


def _dynamic_tags(file: _File) -> list[tuple[int, int]]:
    segments = [segment for segment in file.segments if segment.kind == _DYNAMIC]
    if file.type not in (_SHARED, _PROGRAM) or not segments:
        return []
    table = file.table("AA", file.offset(segments[-1].address), segments[-1].size // (2 * file.word_bytes))
    return [(tag, value) for tag, value in takewhile(lambda entry: entry[0], table)]


def _symbols(file: _File, tags: dict[int, int]) -> Iterator[tuple[int, int, bool]]:
    """(place of the name, binding, whether it is defined) of each dynamic symbol."""
    if _SYMTAB not in tags:
        return
    count = _symbol_count(file, tags)
    if file.is_64_bit:
        for name, info, _, section, _, _ in file.table("IBBHQQ", file.offset(tags[_SYMTAB]), count):
            yield name, info >> 4, section != 0
    else:
        for name, _, _, info, _, section in file.table("IIIBBH", file.offset(tags[_SYMTAB]), count):
            yield name, info >> 4, section != 0


def _symbol_count(file: _File, tags: dict[int, int]) -> int:
    """The loader needs no count: it finds symbols by a hash table or by the relocations' indices."""
    if _GNU_HASH in tags:
        at = file.offset(tags[_GNU_HASH])
        buckets, first, bloom_words, _ = file.unpack("4I", at)
        at += 16 + bloom_words * file.word_bytes
        last = max((bucket for (bucket,) in file.table("I", at, buckets)), default=0)
        if last:
            chains = at + 4 * (buckets - first)
            while not file.unpack("I", chains + 4 * last)[0] & 1:  # the mark of a chain's end
                last += 1
            return last + 1
    elif _HASH in tags:
        return file.unpack("II", file.offset(tags[_HASH]))[1]
    # It exports nothing.
    last = 0
    for start, size, has_addend in (
        (_RELA, _RELASZ, True),
        (_REL, _RELSZ, False),
        (_JMPREL, _PLTRELSZ, tags.get(_PLTREL) == _RELA),
    ):
        if start in tags:
            fields = "AAA" if has_addend else "AA"
            table = file.table(fields, file.offset(tags[start]), tags.get(size, 0) // (len(fields) * file.word_bytes))
            last = max(last, *(info >> (32 if file.is_64_bit else 8) for _, info, *_ in table), 0)
    return last + 1


class _Version(NamedTuple):
    library: str
    name: str
    is_weak: bool


def _needed_versions(file: _File, tags: dict[int, int], strings: int) -> dict[int, _Version]:
    """The versions that the file needs of libraries, by their numbers in the file."""
    found: dict[int, _Version] = {}
    if _VERNEED not in tags:
        return found
    at = file.offset(tags[_VERNEED])
    for _ in range(tags.get(_VERNEEDNUM, 0)):
        _, count, library, auxiliary, following = file.unpack("HHIII", at)
        entry = at + auxiliary
        for _ in range(count):
            _, flags, number, name, after = file.unpack("IHHII", entry)
            found[number] = _Version(
                file.name(strings + library), file.name(strings + name), bool(flags & _WEAK_VERSION)
            )
            entry += after
        if not following:
            break
        at += following
    return found


def _defined_versions(file: _File, tags: dict[int, int], strings: int) -> Iterator[str]:
    at = file.offset(tags[_VERDEF]) if _VERDEF in tags else 0
    for _ in range(tags.get(_VERDEFNUM, 0)):
        *_, auxiliary, following = file.unpack("HHHHIII", at)
        yield file.name(strings + file.unpack("I", at + auxiliary)[0])
        if not following:
            break
        at += following


def _needed_isas(file: _File) -> Iterator[int]:
    """The bits of x86-64 levels in the file's GNU properties."""
    for segment in file.segments:
        if segment.kind not in (_NOTE, _PROPERTY):
            continue
        at, end, step = segment.offset, segment.offset + segment.size, 8 if segment.alignment == 8 else 4
        while at + 12 <= end:
            name_size, size, kind = file.unpack("III", at)
            content = at + 12 + -(-name_size // 4) * 4
            at = content + -(-size // step) * step
            if kind != 5 or name_size != 4 or file.content[content - 4 : content] != b"GNU\0":
                continue
            while content + 12 <= at:
                what, length, value = file.unpack("III", content)
                if what == _X86_ISA_NEEDED:
                    yield value
                content += 8 + -(-length // step) * step


def newest_versions(versions: Iterable[str]) -> dict[str, str]:
    """The newest version of each family among versions of symbols: ``{"GLIBC": "2.14"}``."""
    newest: dict[str, str] = {}
    for name in sorted(versions):  # equal builds list them in one order
        if found := re.fullmatch(r"([A-Z]+)_([0-9]{1,9}(?:\.[0-9]{1,9})*)", _NUMBERED.get(name, name)):
            family, version = found.groups()
            newest[family] = max(newest.get(family, "0"), version, key=lambda text: [*map(int, text.split("."))])
    return newest


def search_places(elf: Elf, origin: str) -> list[str]:
    """The directories in which the loader looks for what a file in the directory ``origin`` needs, in order."""
    variable = env.LD_LIBRARY_PATH.raw()
    named = [one or "." for one in re.split("[:;]", variable)] if variable is not None else []
    places = (*elf.rpath, *named, *elf.runpath)
    return [os.path.normpath(one.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin)) for one in places]
