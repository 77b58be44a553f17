"""Compiler flags: words and their values, standards, response files, and the files that flags name."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from op_builder.errors import AccelError, ToolchainError
from op_builder.messages import warn_once
from op_builder.system.file_contents import file_sha256, file_status

logger = logging.getLogger(__name__)

DIRECTORY_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter")
_VALUED_FLAGS = (*DIRECTORY_FLAGS, "-D", "-U", "-include", "-imacros", "-x")
# Their value is always a word of its own.
_TWO_WORDS = (
    *("-Xclang", "-Xcompiler", "-Xpreprocessor", "-Xassembler", "-Xlinker", "-mllvm", "--param"),
    *("-B", "-wrapper", "-specs", "--specs", "--sysroot", "-isysroot", "-target", "-gcc-toolchain"),
)
# These take the next word for their value if they are alone.
_OF_LINKER = ("-l", "-L", "-T", "-z", "-u")
# Which programs the driver starts.
TOOL_FLAGS = ("-B", "-fuse-ld", "--ld-path", "-wrapper", "--gcc-", "-gcc-toolchain")
# In which directories the linker searches.
PLACE_FLAGS = (*TOOL_FLAGS, "--sysroot", "-isysroot", "-target", "--target", "-m")
_NVCC_FILES = ("-optf", "--options-file")
_LISTS_HEADERS_INTO = ("-MF", "-MT", "-MQ", "-MJ", "--dependency-output", "--dependency-target-name")
_OUTPUTS = ("-o", "--output", "-dumpdir", "-dumpbase")
# In -Wl,-o,FILE, -Xlinker -o, -Wp,-MMD,FILE and so on.
_LISTS_PASSED_ON = (*_LISTS_HEADERS_INTO[:4], "-MD", "-MM")
# GNU ld accepts the start of a long name: --output, --out-implib, --dependency-file.
_OUTPUTS_PASSED_ON = ("-o/", "--ou", "--depe", "-depe")
# The option of the driver that passes one word on, by the option for words with commas between them.
_PASSES_WORD = {"-Wl": "-Xlinker", "-Wa": "-Xassembler", "-Wp": "-Xpreprocessor"}
_NO_OUTPUTS = ("-optf", "-objcmt")
_INDIRECT = ("-specs", "--specs", "--config", "-fmodule", "-fprebuilt-module", *_NVCC_FILES)
# A response file of a tool, or in a variable a flag that shortens or moves the list of headers.
_INDIRECT_PASSED_ON = ("@/", "-MM", "-MF")
_PROGRAMS = ("as", "ld", "cc1", "cc1plus")
_STANDARDS = ("-std=c", "-std=gnu", "--std=c", "--std=gnu")
_DRAFTS = {"98": 3, "03": 3, "0x": 11, "1y": 14, "1z": 17, "2a": 20, "2b": 23, "2c": 26}


def grouped_flags(flags: Iterable[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each flag with its value, empty where it has none, and the words it was written in.

    >>> list(grouped_flags(["-DX=1", "-D", "Y", "-O3"]))
    [('-D', 'X=1', ('-DX=1',)), ('-D', 'Y', ('-D', 'Y')), ('-O3', '', ('-O3',))]
    """
    words = iter(flags)
    for word in words:
        flag = next((flag for flag in _VALUED_FLAGS if word.startswith(flag)), word)
        takes_next = word in (*_VALUED_FLAGS, *_TWO_WORDS)
        rest = [next(words, "")] if takes_next else []
        yield flag, "".join(rest) or word.removeprefix(flag), (word, *rest)


def flags_of(kinds: tuple[str, ...], flags: Iterable[str]) -> tuple[str, ...]:
    """The words of those flags that start with one of ``kinds``: TOOL_FLAGS or PLACE_FLAGS."""
    return tuple(word for _, _, words in grouped_flags(flags) if words[0].startswith(kinds) for word in words)


def host_words(flags: Iterable[str]) -> list[str]:
    """nvcc's flags, with those that it passes to the host compiler as words of their own."""
    passing = ("-Xcompiler", "--compiler-options")
    words = (word.partition("=")[2] if word.startswith(passing) and "=" in word else word for word in flags)
    return [piece for word in words for piece in word.split(",") if piece not in passing]


def names_in(flags: Iterable[str]) -> list[str]:
    """The programs and directories that TOOL_FLAGS may name: ``ld.gold`` for ``-fuse-ld=gold``, the value of ``-B``."""
    names: list[str] = []
    for flag, value, _ in grouped_flags(flags):
        value = value or (flag[2:] if flag.startswith("-B") else flag.partition("=")[2])
        names += value.split(",") if flag == "-wrapper" else [value]
    names = [name for name in names if name and not name.startswith("-")]
    return [*names, *(f"ld.{name}" for name in names if "/" not in name)]


def without_older_standards(op: str, needed: str, flags: Sequence[str]) -> list[str]:
    """``flags`` without each ``-std=`` or ``-ansi`` older than ``needed``, with one warning for each op and flag."""
    kept = []
    for flag in flags:
        year = _year(flag)
        if year is not None and year < (_year(needed) or 0):
            warn_once(
                logger, f"Op '{op}' is compiled with {needed} instead of {flag}: the installed torch requires it."
            )
        else:
            kept.append(flag)
    return kept


def _year(flag: str) -> int | None:
    if flag in ("-ansi", "--ansi"):
        return _DRAFTS["98"]
    # Not by a regular expression: to compile one takes a hundredth of a warm load.
    start, _, name = flag.replace(" ", "=").partition("++")
    if start not in _STANDARDS:
        return None
    return _DRAFTS.get(name) or (int(name) if name.isdecimal() else None)


def check_words(words: Iterable[str]) -> None:
    """Check that ninja, compilers and their lists of headers can express every word.

    Raises:
        AccelError: a word contains a line break or a null, or has no form in the file system's encoding.
    """
    for word in words:
        if "\n" in word or "\0" in word:
            raise AccelError(
                f"The path or flag {word!r} contains a line break or a null character, which ninja and the lists of "
                "headers that compilers write cannot express.",
                "Rename the file or directory, or correct the flag.",
            )
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            raise AccelError(
                f"The path or flag {word!a} cannot be encoded in the file system's encoding, "
                f"{sys.getfilesystemencoding()}.",
                "Start Python with -X utf8, or choose a locale with the right encoding.",
            ) from None


def checked_flags(flags: Iterable[str]) -> list[str]:
    """:func:`expand_response_files`, without the flags for lists of headers, which the engine itself passes.

    Raises:
        AccelError: a response file is named by a relative path, a flag names an output, or the last flag lacks its
            value.
    """
    kept: list[str] = []
    expanded = expand_response_files(flags)
    last = expanded[-1] if expanded else ""
    groups = grouped_flags(expanded)
    for flag, value, words in groups:
        # -MD, -MF FILE and their long names, also nvcc's.
        if flag.startswith("-M") or (flag.startswith("--") and "dependenc" in flag.partition("=")[0]):
            if flag in _LISTS_HEADERS_INTO:
                next(groups, None)
            continue
        if not value and words[0] in (*_VALUED_FLAGS, *_TWO_WORDS, *_OF_LINKER) and (len(words) > 1 or flag == last):
            raise AccelError(
                f"The flag {words[0]!r} lacks its value; the compiler would read the next flag as its value.",
                "Add the value after the flag, or remove the flag.",
            )
        passed_on = [value] if flag in _TWO_WORDS else _pieces(flag)[1:]
        is_output = flag.startswith(_OUTPUTS) and not flag.startswith(_NO_OUTPUTS)
        if is_output or any(map(_is_output_passed_on, passed_on)):
            raise AccelError(
                f"The flag {' '.join(words)!r} names an output, but the engine itself names all outputs.",
                "Remove the flag; `accel-ops cache list` shows where built ops are.",
            )
        kept += words
    return kept


def _is_output_passed_on(piece: str) -> bool:
    # Not every piece that begins with -o: -opaque-pointers, -order_file.
    return piece.partition("=")[0] in _OUTPUTS or piece.startswith((*_OUTPUTS_PASSED_ON, *_LISTS_PASSED_ON))


def _pieces(word: str) -> list[str]:
    """The parts of a flag such as ``-Wl,-soname=x``. A regular expression would take longer to compile."""
    return word.replace("=", ",").split(",")


def expand_response_files(flags: Iterable[str], within: tuple[str, ...] = ()) -> list[str]:
    """``flags`` with the words of each response file (``@file``, ``-Wl,@file``, nvcc's ``-optf file``) in its place.

    One that is missing, or that names itself, stays: the compiler reports it.

    Args:
        within: the response files that the flags are from, each named by the one before it.

    Raises:
        AccelError: a response file is named by a relative path.
    """
    found: list[str] = []
    words = iter(flags)
    for word in words:
        flag, _, names = word.partition("=")
        first, *rest = word.split(",")
        if word.startswith("@"):
            found += _expanded(word, word[1:], within)
        elif flag in _NVCC_FILES:
            for path in (names or next(words, "")).split(","):
                found += _expanded(f"{flag}={path}", path, within)
        elif first in _PASSES_WORD and any(piece.startswith("@") for piece in rest):
            named = (_expanded(piece, piece[1:], within) if piece.startswith("@") else [piece] for piece in rest)
            pieces = [passed for words_of_piece in named for passed in words_of_piece]
            found += [passed for piece in pieces for passed in (_PASSES_WORD[first], piece)]
        else:
            found.append(word)
    return found


def _expanded(word: str, path: str, within: tuple[str, ...]) -> list[str]:
    """The words of the response file ``path``, which ``word`` names."""
    if not os.path.isabs(path):
        raise AccelError(
            f"The flag {word!r} names the response file {path!r} by a relative path, but compilers run in a "
            "directory of their own.",
            "Name it by its absolute path.",
        )
    if path in within or not os.path.isfile(path):
        return [word]
    return expand_response_files(_words_in(path), (*within, path))


def named_files(flags: Iterable[str]) -> list[str]:
    """The existing files that flags name by absolute paths, which no depfile lists: plugins, specs, profiles.

    Values of ``-D`` and directories do not count, except for the programs in those of ``-B``.
    """
    words = _without_defines(flags)
    paths = [piece[piece.find("/") :] for word in words for piece in _pieces(word) if "/" in piece]
    if any(word.startswith("-B") for word in words):
        paths += [f"{path}/{program}" for path in paths for program in _PROGRAMS]
    return list(filter(os.path.isfile, dict.fromkeys(paths)))


def named_directories(flags: Iterable[str]) -> list[str]:
    """All absolute paths in flags, or in the values of variables, that are no files: a linker may search there."""
    words = [piece for word in flags for piece in (word, *_pieces(word), *word.split(":")) if "/" in piece]
    paths = dict.fromkeys(word[word.find("/") :].rstrip("/") for word in words)
    return [path for path in paths if path and not os.path.isfile(path)]


def named_statuses(flags: Sequence[str], staging: Path, outputs: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    """The statuses of the files that flags name, None where there is none; relative names are those in ``staging``.

    In a directory that a flag names, they are the files named after one of ``outputs``, as with ``-Map=DIRECTORY``:
    other programs may write other files into it.
    """
    starts = tuple(name.removesuffix(".o") for name in outputs)
    pieces = [piece for word in _without_defines(flags) for piece in _pieces(word)]
    names = [piece[piece.find("/") :] for piece in pieces if "/" in piece]
    names += [os.path.normpath(staging / piece) for piece in pieces if f"{piece}/".startswith(("../", "./"))]
    directories = {name for name in names if os.path.isdir(name)}
    files = [name for name in names if name not in directories]
    for directory in directories - {os.path.normpath(staging)}:
        with contextlib.suppress(OSError):
            files += [f"{directory}/{name}" for name in os.listdir(directory) if name.startswith(starts)]
    return {name: file_status(name) for name in files}


def refuse_output(op: str, what: str, remedy: str = "") -> NoReturn:
    """Raise a ToolchainError about flags that request an output in addition to the binary."""
    raise ToolchainError(
        f"The flags of '{op}' {what}; a build keeps only the binary.",
        f"{remedy}Remove the flag of a second output, such as -Map, -save-temps, -gsplit-dwarf, --coverage or "
        "-fprofile-generate without a directory.",
    )


def indirect_flags(flags: Iterable[str]) -> list[str]:
    """The flags of a compiler or linker that name a file or directory in which it finds the names of other inputs.

    No tool lists these: specs, configuration files, directories of profiles, C++ modules, nvcc's ``-Xcompiler=@file``.
    """
    return [
        word
        for word in _without_defines(flags)
        if word.startswith(_INDIRECT)
        or any(piece.startswith(_INDIRECT_PASSED_ON) for piece in _pieces(word.replace("+", ",")))
        or ("-use=" in word and os.path.isdir(word.partition("=")[2]))
        or (word.startswith("-fplugin=") and "/" not in word)  # GCC looks for it in a directory of its own
    ]


def _without_defines(flags: Iterable[str]) -> list[str]:
    """The words of flags that are no macros and no include directories."""
    skipped = (*DIRECTORY_FLAGS, "-D", "-U")
    return [word for flag, _, words in grouped_flags(flags) if flag not in skipped for word in words]


def linked_libraries(flags: Iterable[str]) -> list[str]:
    """The libraries that link flags make the linker look for, each as ``-lz``, and shared libraries that they name."""
    found = []
    pieces = iter([piece for word in flags if word != "-Xlinker" for piece in _pieces(word)])
    for piece in pieces:
        if piece in ("-l", "--library"):
            found.append(f"-l{next(pieces, '')}")
        elif piece.startswith("-l") or ".so" in os.path.basename(piece):
            found.append(piece)
    return found


def contents_of(files: Iterable[str]) -> list[str]:
    """``name:sha256`` of each file, without its directory."""
    return [f"{os.path.basename(name)}:{file_sha256(name)}" for name in files]


def _words_in(path: str) -> list[str]:
    """The words of a response file, split as GCC and clang split them: a backslash escapes also inside quotes."""
    with open(path, "rb") as file:
        text = os.fsdecode(file.read())
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            word = (word or "") + next(characters, "")
        elif quote and character != quote:
            word = (word or "") + character
        elif character in "'\"":
            quote = "" if quote else character
            word = word or ""
        elif character not in " \t\n\v\f\r":
            word = (word or "") + character
        elif word is not None:
            words.append(word)
            word = None
    return words if word is None else [*words, word]
