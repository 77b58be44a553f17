"""The dynamic section of an ELF file. A module of its own because a warm load reads none."""

from __future__ import annotations

import mmap
import os.path
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile


class Elf(NamedTuple):
    """What the dynamic loader reads of a file.

    Attributes:
        machine: as in wheel tags: ``x86_64``, ``aarch64``, ``armv7l``; pyelftools' name of a rare one.
        needed: libraries (``DT_NEEDED``). ``search``: directories in which it looks for them, with ``$ORIGIN``.
        defined: names of defined symbols.
        undefined: names that must be found, with their version: ``memcpy@GLIBC_2.14``.
        optional: those that may be missing (weak).
        versions: all symbol versions that it needs of libraries: ``GLIBC_2.14``.
        isa: the x86-64 level that the file is marked with, such as ``x86-64-v3``; empty without a mark.
    """

    machine: str
    needed: tuple[str, ...]
    search: tuple[str, ...]
    defined: frozenset[str]
    undefined: frozenset[str]
    optional: frozenset[str]
    versions: frozenset[str]
    isa: str


def read_elf(file: BinaryIO) -> Elf:
    """The facts of an ELF file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a whole ELF file.
    """
    defined: set[str] = set()
    found: dict[str, set[str]] = {"STB_WEAK": set(), "": set()}
    try:
        elf = ELFFile(file)
        sections: dict[str, Any] = {section.name: section for section in elf.iter_sections()}
        numbers, groups = sections.get(".gnu.version"), sections.get(".gnu.version_r")
        listed = groups.iter_versions() if groups is not None else ()
        versions = {version["vna_other"]: version.name for _, group in listed for version in group}
        for index, symbol in enumerate(sections[".dynsym"].iter_symbols() if ".dynsym" in sections else ()):
            if symbol["st_shndx"] != "SHN_UNDEF":
                defined.add(symbol.name)
            elif symbol.name:
                version = versions.get(numbers.get_symbol(index)["ndx"]) if numbers is not None else None
                bind = symbol["st_info"]["bind"]
                found[bind if bind in found else ""].add(symbol.name if version is None else f"{symbol.name}@{version}")
        tags = list(sections[".dynamic"].iter_tags()) if ".dynamic" in sections else []
        notes = sections[".note.gnu.property"].iter_notes() if ".note.gnu.property" in sections else ()
        properties = [item for note in notes if isinstance(note["n_desc"], list) for item in note["n_desc"]]
        isa = [item["pr_data"] for item in properties if item["pr_type"] == "GNU_PROPERTY_X86_ISA_1_NEEDED"]
        machine = str(elf.header["e_machine"]).removeprefix("EM_").lower()
        wheel_names = {
            "386": "i686",
            "arm": "armv7l",
            "ppc64": "ppc64le" if elf.little_endian else "ppc64",
            "riscv": f"riscv{elf.elfclass}",
            "s390": "s390x" if elf.elfclass == 64 else "s390",
        }
    except (ELFError, UnicodeDecodeError, KeyError, AttributeError, TypeError) as error:  # pyelftools checks little
        raise ValueError(str(error) or "it is not an ELF file") from None
    search = ":".join(
        tag.runpath if tag.entry.d_tag == "DT_RUNPATH" else tag.rpath
        for tag in tags
        if tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH")
    )
    return Elf(
        wheel_names.get(machine, machine),
        tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        tuple(filter(None, search.split(":"))),
        frozenset(defined),
        frozenset(found[""]),
        frozenset(found["STB_WEAK"]),
        frozenset(versions.values()),
        "" if not isa else "x86-64" if max(isa) == 1 else f"x86-64-v{max(isa).bit_length()}",
    )


def search_places(search: Iterable[str], origin: str) -> list[str]:
    """The directories of ``Elf.search`` for a file in the directory ``origin``."""
    return [os.path.normpath(one.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin)) for one in search]


def dynamic_symbols(path: Path) -> tuple[set[str], set[str]]:
    """The names that a library defines, and those that it needs with their version: ``memcpy@GLIBC_2.14``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a whole ELF file.
    """
    with path.open("rb") as file:
        elf = read_elf(file)
    return set(elf.defined), {*elf.undefined, *elf.optional}


def library_index(path: Path) -> tuple[frozenset[str], Callable[[str], bool]]:
    """The libraries that a library needs, and a function that looks up one of its symbols without reading the others.

    Raises:
        OSError, ValueError: as for :func:`dynamic_symbols`.
    """
    try:
        with path.open("rb") as file:
            content: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        elf = ELFFile(content)
        sections: dict[str, Any] = {section.name: section for section in elf.iter_sections()}
        needed = [tag.needed for tag in sections[".dynamic"].iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
        table = sections.get(".gnu.hash") or sections[".hash"]
    except (ELFError, KeyError) as error:
        raise ValueError(str(error) or "it is not an ELF file") from None
    return frozenset(needed), lambda name: table.get_symbol(name) is not None
