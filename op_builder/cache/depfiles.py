"""What a finished build read: the headers and archives that the depfiles of compilers and linker list.

A module of its own because only a build needs it; a warm load only compares what was recorded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from op_builder.cache.headers import Header, Roots, SystemHeaders
from op_builder.plan import BuildPlan
from op_builder.system.file_contents import file_sha256, settled_status


class HeaderGoneError(Exception):
    """A header of the op's own that a build read was removed before its content could be hashed."""


def read_headers(
    plan: BuildPlan, depfiles: Iterable[Path], stamped: Iterable[str], linked: Path | None = None
) -> tuple[tuple[Header, ...], SystemHeaders]:
    """The headers that the depfiles of a finished build name, and the archives among what was linked.

    Args:
        linked: the linker's own depfile; some linkers write none.
        stamped: directories whose files are not listed: they count through an identity in the plan key.

    Raises:
        HeaderGoneError: one of the op's own was removed since.
    """
    roots = Roots.of(plan)
    skipped = tuple(os.path.realpath(directory) + os.sep for directory in stamped)
    sources = {os.path.realpath(source.path) for source in plan.sources if source.text is None}
    # Relative names are the build's own files, which the plan key knows by their text.
    listed = (
        name
        for depfile in depfiles
        for name in parse_depfile(depfile.read_text(encoding="utf-8", errors="surrogateescape"))
    )
    names = {_without_dots(name) for name in listed if os.path.isabs(name)}
    not_beside = _not_beside(sources | names, roots)
    places = {name: roots.name(name) for name in names}
    if linked is not None and linked.exists():
        found = parse_linked(linked.read_text(encoding="utf-8", errors="surrogateescape"))
        places |= {name: roots.holding(name) for name in map(_without_dots, found) if _is_linked_in(name)}
    headers: dict[tuple[str, str], Header] = {}
    system = []
    for name, (root, path) in sorted(places.items()):
        resolved = os.path.realpath(name)
        if resolved in sources or resolved.startswith(skipped):
            continue
        if not os.path.exists(name):
            if roots.holding(name)[0]:
                raise HeaderGoneError(name)
            continue  # what a compiler made for itself
        if root:
            asked = [place for text, place in not_beside if name.endswith(os.sep + text)]
            shadows = tuple(dict.fromkeys([*roots.earlier(root, path), *asked]))
            headers[root, path] = Header(root, path, file_sha256(name), settled_status(name), shadows)
        else:
            system.append(name)
    return tuple(headers.values()), SystemHeaders.of(system)


def _without_dots(name: str) -> str:
    """An absolute path without ``.`` and ``..``; what comes after the last of these keeps its links."""
    before, dots, rest = name.rpartition("/../")
    return os.path.normpath(os.path.join(os.path.realpath(before + "/.."), rest) if dots else name)


_QUOTED = re.compile(rb'^[ \t]*#[ \t]*(?:include|import)[ \t]*"([^"\n]+)"', re.MULTILINE)


def _not_beside(names: Iterable[str], roots: Roots) -> list[tuple[str, str]]:
    """(text, place) of each ``#include "text"`` in the op's own files that was not found beside the file.

    A file that is put at that place is read instead of the one that was found.
    """
    found = []
    for name in sorted(names):
        if not roots.name(name)[0] or not os.path.isfile(name):
            continue
        for text in map(os.fsdecode, _QUOTED.findall(Path(name).read_bytes())):
            beside = os.path.normpath(os.path.join(os.path.dirname(name), text))
            if not os.path.exists(beside):
                found.append((text, "/".join(roots.name(beside))))
    return found


def parse_depfile(text: str) -> list[str]:
    """The prerequisites in a make-style depfile as compilers write it.

    >>> parse_depfile("a.o: a.cpp /x/b.h \\\\\\n my\\\\ dir/c.h\\n")
    ['a.cpp', '/x/b.h', 'my dir/c.h']
    """
    joined = text.replace("\\\n", " ")
    names: list[str] = []
    for line in joined.splitlines():
        _, colon, prerequisites = line.partition(": ")
        if not colon:
            continue
        names_text = prerequisites.replace("\\ ", "\0").replace("\\#", "#").replace("$$", "$")
        names += [name.replace("\0", " ") for name in names_text.split()]
    return names


# Of the C library, as its headers are, but in every binary, and alike to all of them.
_START_FILES = re.compile(r"\w*crt\w*\.o|libc_nonshared\.a")
_ELF_TYPE = slice(16, 18)


def _is_linked_in(name: str) -> bool:
    """Whether a file that the linker opened ends up in the binary, or steers the link: a shared library does neither.

    One that is named ``.so`` may be a linker script.
    """
    if not os.path.isabs(name) or _START_FILES.fullmatch(os.path.basename(name)):
        return False
    try:
        with open(name, "rb") as file:
            start = file.read(_ELF_TYPE.stop)
    except OSError:
        return False
    return not (start.startswith(b"\x7fELF") and start[_ELF_TYPE] in (b"\3\0", b"\0\3"))


def parse_linked(text: str) -> list[str]:
    """The files in a linker's depfile, where each has a line; some linkers escape blanks, others do not.

    >>> parse_linked("op.so: \\\n  0_op.o \\\n  /my libs/libx.a\n\n0_op.o:\n\n/my libs/libx.a:\n")
    ['0_op.o', '/my libs/libx.a']
    """
    rule = text.partition("\n\n")[0]
    lines = [line.strip().removesuffix("\\").strip() for line in rule.splitlines()[1:]]
    return [line.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$") for line in lines]
