"""``python -m op_builder.cache verify --rebuild``: whether compiling gives the bytes that an entry holds."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from op_builder.cache.fingerprint import plan_key
from op_builder.cache.store import Cache, Entry
from op_builder.catalog.device import requested_package
from op_builder.command_line import printable
from op_builder.engine.build import build
from op_builder.errors import AccelError
from op_builder.report.collect import find_op
from op_builder.system.memo import Memo
from op_builder.toolchains.toolset import find_toolset

_SECTION_HEADER = {1: "IIIIII", 2: "IIQQQQ"}  # by class: name, type, flags, address, offset, size


@dataclass(frozen=True)
class Rebuilt:
    """What compiling an entry's op again gave.

    Attributes:
        differences: parts of the binary that differ; empty if all bytes are equal.
        obstacle: why the op was not compiled, or was compiled from other files; empty if it was.
    """

    entry: Entry
    differences: tuple[str, ...] = ()
    obstacle: str = ""

    def __str__(self) -> str:
        result = "equal"
        if self.obstacle:
            result = f"not compared: {self.obstacle}"
        elif self.differences:
            result = f"different: {', '.join(self.differences)}"
        return printable(f"{self.entry.manifest.op} {self.entry.digest[:12]}: {result}")


def rebuild(cache: Cache, entries: Iterable[Entry]) -> list[Rebuilt]:
    """Compile the ops of entries again, each in a new directory, and compare the binaries. The entries stay."""
    _, package = requested_package()
    return [_rebuilt(entry, package, cache.memo) for entry in entries]


def _rebuilt(entry: Entry, package: str, memo: Memo) -> Rebuilt:
    manifest = entry.manifest
    if manifest.kind == "header":
        return Rebuilt(entry, obstacle="GCC makes no two precompiled headers alike")
    try:
        builder = find_op(manifest.op, package)
        plan = builder.plan_for(manifest.cuda_archs) if manifest.cuda_archs else builder.plan()
        toolset = find_toolset(plan, memo)
        key = plan_key(plan, toolset, memo)
        if key.parts != manifest.key_parts:
            names = {*key.parts, *manifest.key_parts}
            changed = sorted(name for name in names if key.parts.get(name) != manifest.key_parts.get(name))
            return Rebuilt(entry, obstacle=f"changed since it was built: {', '.join(changed)}")
        with tempfile.TemporaryDirectory(prefix="accel-rebuild-") as name:
            made = build(plan, key, toolset, Cache(Path(name) / "cache"))
            if made.digest != entry.digest:
                return Rebuilt(entry, obstacle="a header has changed since it was built")
            return Rebuilt(entry, _differences(entry.artifact.read_bytes(), made.artifact.read_bytes()))
    except AccelError as error:
        return Rebuilt(entry, obstacle=error.message)
    except OSError as error:
        return Rebuilt(entry, obstacle=str(error))


def _differences(before: bytes, now: bytes) -> tuple[str, ...]:
    """The sections that differ between two binaries; the first byte where they do if there are no such sections."""
    if before == now:
        return ()
    old, new = _sections(before), _sections(now)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if names:
        return tuple(f"section {name}" for name in names)
    at = next((at for at, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), len(before))
    return (f"bytes from {min(at, len(now))} of {len(before)}",)


def _sections(binary: bytes) -> dict[str, bytes]:
    """The sections of an ELF file by name; empty for any other file."""
    try:
        order = "<" if binary[5] == 1 else ">"
        is_64 = binary[4] == 2
        (table,) = struct.unpack_from(order + ("Q" if is_64 else "I"), binary, 40 if is_64 else 32)
        size, count, names_at = struct.unpack_from(f"{order}HHH", binary, 58 if is_64 else 46)
        form = order + _SECTION_HEADER[binary[4]]
        rows = [struct.unpack_from(form, binary, table + number * size) for number in range(count)]
        names = binary[rows[names_at][4] :]
        return {
            names[row[0] : names.index(b"\0", row[0])].decode(errors="replace"): binary[row[4] : row[4] + row[5]]
            for row in rows
            if row[1] not in (0, 8)  # no section, no bytes in the file
        }
    except (IndexError, KeyError, ValueError, struct.error):
        return {}
