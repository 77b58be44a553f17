"""The dynamic symbols of an ELF file. A module of its own because a warm load reads none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile


def dynamic_symbols(path: Path) -> tuple[set[str], set[str]]:
    """The names that a library defines, and those that it needs with their version: ``memcpy@GLIBC_2.14``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no whole ELF file.
    """
    defined: set[str] = set()
    needed: set[str] = set()
    with path.open("rb") as file:
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
                    needed.add(symbol.name if version is None else f"{symbol.name}@{version}")
        except ELFError as error:
            raise ValueError(str(error) or "it is no ELF file") from None
    return defined, needed
