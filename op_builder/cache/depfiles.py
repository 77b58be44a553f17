"""What a finished build read: the files that the depfiles of compilers, assembler and linker list.

A module of its own because only a build needs it; a warm load only compares what was recorded. Depfiles and paths are
bytes: they are split as make splits them, and decoded as the file system's names are, whatever the locale.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from op_builder.cache.key import INSTALLED, Header, Roots, SystemHeaders, unlisted
from op_builder.plan import BuildPlan
from op_builder.system.file_contents import file_sha256, settled_status
from op_builder.toolchains.flags import grouped_flags, indirect_flags, linked_libraries, named_directories


class HeaderGoneError(Exception):
    """A file that a build read was removed before its content could be hashed."""


def read_headers(
    plan: BuildPlan,
    depfiles: Iterable[Path],
    stamped: Iterable[str],
    searched: Iterable[Sequence[str]],
    *,
    flags: Iterable[str] = (),
    assembled: Iterable[Path] | None = None,
    linked: Path | None = None,
    library_directories: Iterable[str] = (),
) -> tuple[tuple[Header, ...], tuple[str, ...], SystemHeaders]:
    """The op's headers that a build read, the paths where it found no file, and the system's headers.

    Inputs that no tool lists are among the headers, by :func:`~op_builder.cache.key.unlisted`.

    Args:
        depfiles: of the compilers, in the build's directory.
        stamped: directories whose files are not listed, and such files: they count through an identity in the plan key.
        searched: the directories in which the compilers search for headers, a list for each order.
        flags: of the compilers and the linker.
        assembled: depfiles of the assembler, None where it writes none.
        linked: the linker's depfile; some linkers write none.
        library_directories: in which it looks for libraries, in addition to those that flags name.

    Raises:
        HeaderGoneError: a file was removed since.
    """
    roots = Roots.of(plan)
    depfiles = list(depfiles)
    skipped = tuple(os.path.realpath(directory) + os.sep for directory in (*stamped, str(depfiles[0].parent)))
    sources = {os.path.realpath(source.path) for source in plan.sources if source.text is None}
    listed = {_without_dots(os.path.join(path.parent, name)) for path in depfiles for name in _listed(path)}
    # An environment may be in the project's own directory, and torch's headers are thousands.
    read = {*sources, *(name for name in listed if not name.startswith(skipped))}
    texts = {name: _spliced(text) for name, text in _own_texts(plan, read, roots)}
    orders = [[_without_dots(directory) for directory in directories] for directories in searched]
    flags = list(flags)
    unclear = indirect_flags(flags) + [word for word in flags if _hides_in_flag(word, assembled is not None)]
    unclear += [] if all(orders) else ["a compiler that lists no include directories"]
    for name, text in texts.items():
        match = _HIDDEN.search(_NO_LOOKUP.sub(rb"\1 ", text))
        match = match or (_ASSEMBLED.search(text) if assembled is None else None)
        unclear += (
            [f"{match[0].decode(errors='replace').strip()} in {os.path.basename(name)}"] if match is not None else []
        )
    if assembled is not None:
        # It also lists the names in #line directives, which need not exist.
        found = {_without_dots(name) for path in assembled for name in _listed(path) if os.path.isabs(name)}
        listed |= set(filter(os.path.isfile, found))
    asking = dict(_asking(listed - texts.keys() - sources, skipped))
    with_macros = [os.path.basename(name) for name, text in asking.items() if _QUOTED_IN_MACRO.search(text)]
    unclear += [f"__has_include in a macro of {name}" for name in with_macros]
    looked_up, empty = _lookups({**texts, **asking}, orders)
    unclear += [f"the directory {name}" for name in looked_up if os.path.isdir(name)]  # of precompiled headers
    looked_up = set(filter(os.path.isfile, looked_up))
    # GCC reads x.h.gch instead of x.h, clang x.h.pch as well, and lists neither.
    headers_of_flags = [value for flag, value, _ in grouped_flags(flags) if flag == "-include" and os.path.isabs(value)]
    own_headers = [*(name for name in texts if os.path.isabs(name) and name not in sources), *headers_of_flags]
    precompiled = [f"{name}.gch" for name in own_headers] + [f"{name}.pch" for name in headers_of_flags]
    looked_up.update(filter(os.path.isfile, precompiled))
    empty += [name for name in precompiled if name not in looked_up]
    own = {name for name in listed | looked_up if roots.name(name)[0]}
    by_macro = {*sources, *(name for name, text in texts.items() if _BY_MACRO.search(text) and os.path.isabs(name))}
    includers = set(map(os.path.dirname, by_macro))  # whose directories #include "..." searches first
    empty += _earlier(own, [[directory, *order] for directory in includers for order in orders])
    empty += _earlier(listed - own, orders)
    places = {name: roots.name(name) for name in listed | looked_up}
    missing = set(map(_first_missing, dict.fromkeys(empty))) - {""}
    if linked is not None and not linked.exists():
        words = linked_libraries(plan.link_flags)
        unclear += [word for word in words if not _OF_THE_C_LIBRARY.fullmatch(f"/lib/lib{word[2:]}.so")]
    elif linked is not None:
        directories = named_directories(flags)
        opened = _opened(linked, directories)
        own_libraries = [name for name in opened if not name.startswith(skipped)]
        others = [
            *_other_libraries(opened, directories),
            *_other_libraries(own_libraries, sorted(set(map(os.path.realpath, library_directories)))),
        ]
        missing |= set(map(_first_missing, others)) - {""}
        unclear += [f"the members of {os.path.basename(name)}" for name in opened if _is_thin_archive(name)]
        places |= {name: roots.below_root(name) for name in opened}
    headers = {("", what): unlisted(what) for what in sorted(unclear)}
    system = []
    for name, (root, path) in sorted(places.items()):
        resolved = os.path.realpath(name)
        if resolved in sources or f"{resolved}/".startswith(skipped) or name.startswith(skipped):
            continue
        if not os.path.exists(name):
            raise HeaderGoneError(name)
        if root:
            headers[root, path] = Header(root, path, file_sha256(name), settled_status(name))
        else:
            system.append(name)
    absent = sorted({"/".join(roots.name(place)) for place in missing if not place.startswith(skipped)})
    return tuple(headers.values()), tuple(absent), SystemHeaders.of(system)


def _listed(depfile: Path) -> list[str]:
    return parse_depfile(depfile.read_bytes())


def _without_dots(name: str) -> str:
    """An absolute path without ``.`` and ``..``; links after the last of these are not resolved."""
    before, dots, rest = name.rpartition("/../")
    return os.path.normpath(os.path.join(os.path.realpath(before + "/.."), rest) if dots else name)


# A directive or operator that looks for a file, and the name in quotes or in angle brackets.
_LOOKUP = re.compile(
    rb"(?:^[ \t]*(?:#|%:)[ \t]*(include|import)|\b(__has_include(?:_next)?)[ \t]*\()"
    rb'[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)',
    re.MULTILINE,
)
# What reads a file that no depfile lists: a C++ text, and where the assembler writes no depfile, its directives.
_HIDDEN = re.compile(
    rb"^[ \t]*(?:#|%:)[ \t]*embed\b|\b__has_embed\b|\b__has_include(?:_next)?[ \t]*\([ \t]*\w+"
    # In a macro, or passed to one.
    rb"|^[ \t]*(?:#|%:)[ \t]*(?:define\b.*\b__has_include|(?:if|elif)\b.*\b__has_include(?:_next)?\b(?![ \t]*\())",
    re.MULTILINE,
)
# In a header of the system: the directory of the file that uses the macro is searched.
_QUOTED_IN_MACRO = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*define\b.*\b__has_include(?:_next)?[ \t]*\([ \t]*\"", re.M)
_NO_LOOKUP = re.compile(rb"\b(define(?:d[ \t]*\(?)?)[ \t]*__has_\w+")
# #include of a macro's value.
_BY_MACRO = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*include(?:_next)?[ \t]+\w", re.MULTILINE)
# What looks like a comment in a string or in the name of a header is none.
_COMMENT = re.compile(
    rb"//[^\n]*|/\*.*?(?:\*/|\Z)"
    rb"|(R\"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'"
    rb"|(?:\binclude|include(?:_next)?[ \t]*\()[ \t]*<[^>\n]*>)",
    re.DOTALL,
)
_ASSEMBLED = re.compile(rb"\.incbin(?=[\s\"\\])|\.include(?=(?:\s|\\t)*\\*\")")


def _hides_in_flag(word: str, is_assembled: bool) -> bool:
    """Whether a flag, such as ``-D``, reads a file that no depfile lists."""
    if "__has_include" in word or "__has_embed" in word:
        return True
    return not is_assembled and _ASSEMBLED.search(os.fsencode(word)) is not None


def _own_texts(plan: BuildPlan, names: Iterable[str], roots: Roots) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the op's own sources and headers; a source given as text has a path without a directory."""
    for source in plan.sources:
        if source.text is not None:
            yield str(source.path), source.text.encode(errors="surrogateescape")
    for name in names:
        root = roots.name(name)[0]
        if root and not root.startswith(INSTALLED) and os.path.isfile(name):
            yield name, Path(name).read_bytes()


def _asking(names: Iterable[str], skipped: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the system's headers that look for others by ``__has_include``."""
    for name in names:
        if (
            not name.startswith(skipped)
            and os.path.isfile(name)
            and b"__has_include" in (text := Path(name).read_bytes())
        ):
            yield name, b"\n".join(line for line in _spliced(text).splitlines() if b"__has_include" in line)


def _spliced(text: bytes) -> bytes:
    """A C++ text with each directive on one line, and without comments."""
    text = text.replace(b"\\\r\n", b"").replace(b"\\\n", b"")
    return _COMMENT.sub(lambda found: found[1] or b" ", text)


def _lookups(texts: dict[str, bytes], orders: list[list[str]]) -> tuple[set[str], list[str]]:
    """Files that the op's files look up by ``__has_include``, precompiled headers of those that they include, and the
    paths where no file was found.

    A file created there later would be found instead, also one next to a file with ``#include "..."``.
    """
    found: set[str] = set()
    empty: list[str] = []
    every = set(chain.from_iterable(orders))
    for file, text in texts.items():
        directory_of_file = [os.path.dirname(file)] if os.path.isabs(file) else []
        for directive, operator, quoted, bracketed in _LOOKUP.findall(text):
            name = os.fsdecode(quoted or bracketed)
            own = directory_of_file if quoted else []
            places = (os.path.join(directory, f"{name}.gch") for directory in every.union(own))
            found.update(os.path.normpath(place) for place in places if directive and os.path.exists(place))
            for directories in [own] if directive else [[*own, *order] for order in orders]:
                for directory in directories:
                    place = os.path.normpath(os.path.join(directory, name))
                    if not os.path.isfile(place):
                        empty.append(place)
                        continue
                    if operator:
                        found.add(place)
                    if operator != b"__has_include_next":  # which searches behind the directory of its own file
                        break
    return found, empty


def _earlier(names: Iterable[str], orders: list[list[str]]) -> list[str]:
    """The paths that precede the files in the search order."""
    places: dict[str, None] = {}
    for directories in orders:
        for position, directory in enumerate(directories):  # a file may be found through any of those that hold it
            shorter = [name.removeprefix(directory) for name in names if name.startswith(directory + os.sep)]
            places.update(dict.fromkeys(earlier + name for earlier in directories[:position] for name in shorter))
    return list(places)


def _first_missing(place: str) -> str:
    """The shortest beginning of a path that does not exist; empty if it exists.

    Many files that a directory could hold count as one while it is missing.
    """
    missing = ""
    while place and not os.path.exists(place):
        place, missing = os.path.dirname(place), place
    return missing


# make separates names only by blanks. An odd number of backslashes before a blank escapes it.
_NAME = re.compile(rb"(?:(?<!\\)(?:\\\\)*\\[ \t]|\\[#:]|\$\$|[^ \t])+")
_ESCAPED = re.compile(rb"(\\+)([ \t])|\\([#:])|\$(\$)")


def parse_depfile(content: bytes) -> list[str]:
    """The prerequisites in a make-style depfile as compilers write it.

    >>> parse_depfile(b"a.o: a.cpp /x/b.h \\\\\\n my\\\\ dir/c.h\\n")
    ['a.cpp', '/x/b.h', 'my dir/c.h']
    """
    names: list[str] = []
    for line in content.replace(b"\\\n", b" ").split(b"\n"):
        _, colon, prerequisites = line.partition(b": ")
        if colon:
            names += [os.fsdecode(_ESCAPED.sub(_unescaped, name)) for name in _NAME.findall(prerequisites)]
    return names


def _unescaped(found: re.Match[bytes]) -> bytes:
    slashes, blank, special, dollar = found.groups()
    # Only before a blank, compilers double a name's own backslashes.
    return b"\\" * (len(slashes) // 2) + blank if slashes else special or dollar


# The C library's files do not count: its start files are in every binary alike, and the versions that a binary needs of
# it are checked before it is loaded.
_OF_THE_C_LIBRARY = re.compile(
    r".*/(?:\w*crt\w*\.o|libc_nonshared\.a)"
    r"|(?:/usr)?/lib\w*/(?:[\w-]+/)?(?:lib(?:c|m|mvec|dl|rt|pthread|gcc_s)\.so(?:\.\d+)?|ld-linux[\w-]*\.so\.\d+)"
)
_THIN = b"!<thin>\n"


def _opened(linked: Path, directories: list[str]) -> set[str]:
    """The libraries and scripts that a linker has opened, according to its depfile, if they still exist."""
    named = parse_linked(linked.read_bytes())
    # A script of -T is listed without the directory of -L in which it was found.
    scripts = [name for name in named if not os.path.exists(linked.parent / name)]
    named += [f"{directory}/{name}" for directory in directories for name in scripts]
    found = filter(os.path.exists, map(_without_dots, filter(os.path.isabs, named)))
    return {name for name in found if not _OF_THE_C_LIBRARY.fullmatch(name)}


def _other_libraries(opened: Iterable[str], directories: list[str]) -> Iterator[str]:
    """The files that the linker may take instead of those that it opened, if they exist.

    The order of the directories does not count: flags and variables name them in many ways.
    """
    for name in opened:
        directory, base = os.path.split(name)
        stem = base.removesuffix(".so").removesuffix(".a")
        for other in {base, f"{stem}.so", f"{stem}.a"} if base.startswith("lib") and stem != base else {base}:
            places = [*directories, *([directory] if other.endswith(".so") else [])]
            yield from (f"{place}/{other}" for place in places)


def _is_thin_archive(name: str) -> bool:
    """Whether it is an archive that only names its members, which no tool lists."""
    try:
        with open(name, "rb") as file:
            return file.read(len(_THIN)) == _THIN
    except OSError:  # a directory, or a file that was removed meanwhile
        return False


def parse_linked(content: bytes) -> list[str]:
    """The files in a linker's depfile, where each has a line; some linkers escape, others do not: both are returned.

    >>> parse_linked(b"op.so: \\\n  0_op.o \\\n  /my libs/libx.a\n\n0_op.o:\n\n/my libs/libx.a:\n")
    ['0_op.o', '/my libs/libx.a']
    """
    lines = content.partition(b"\n\n")[0].split(b"\n")[1:]
    names = [line.lstrip(b" \t").removesuffix(b"\\").rstrip(b" \t") for line in lines]
    return [
        os.fsdecode(text) for name in names for text in dict.fromkeys([name, _ESCAPED.sub(_unescaped, name)]) if text
    ]
