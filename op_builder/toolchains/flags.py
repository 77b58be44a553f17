"""Compiler flags: words and their values, standards, response files, and the files that flags name."""

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from op_builder.errors import AccelError
from op_builder.messages import warn_once
from op_builder.system.file_contents import file_sha256

logger = logging.getLogger(__name__)

DIRECTORY_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter")
_VALUED_FLAGS = (*DIRECTORY_FLAGS, "-D", "-U", "-include", "-imacros", "-x")
# Their value is always a word of its own.
_TWO_WORDS = ("-Xclang", "-Xpreprocessor", "-Xassembler", "-Xlinker", "-mllvm", "--param")
_NVCC_FILES = ("-optf", "--options-file")
_MOST_WORDS = 100_000
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


def expand_response_files(flags: Iterable[str]) -> list[str]:
    """``flags`` with each response file (``@file``, nvcc's ``--options-file file``) replaced by its words.

    Raises:
        AccelError: a response file is named by a relative path, or includes itself.
    """
    flags = list(flags)
    if not any(flag.startswith(("@", *_NVCC_FILES)) for flag in flags):
        return flags
    waiting, found, count = flags[::-1], [], 0
    while waiting:
        word = waiting.pop()
        flag, _, names = word.partition("=")
        if word.startswith("@"):
            paths = [word[1:]]
        elif flag in _NVCC_FILES:
            paths = (names or (waiting.pop() if waiting else "")).split(",")
        else:
            found.append(word)
            continue
        for path in reversed(paths):
            if not os.path.isabs(path):
                raise AccelError(
                    f"The flag {word!r} names the response file {path!r} by a relative path, but compilers run in a "
                    "directory of their own.",
                    "Name it by its absolute path.",
                )
            if not os.path.isfile(path):
                found.append(word)  # the compiler reports it
                continue
            words = _words_in(path)
            count += len(words) + 1
            if count > _MOST_WORDS:
                raise AccelError(f"The response file {path} includes itself.", "Remove the inclusion.")
            waiting += reversed(words)
    return found


def named_files(flags: Iterable[str]) -> list[str]:
    """The existing files that flags name by absolute paths, also in a nested response file.

    No depfile lists them: plugins, specs, profiles, ``-Wl,@file``. Values of ``-D`` and directories do not count.
    """
    found: dict[str, None] = {}
    skipped = (*DIRECTORY_FLAGS, "-D", "-U")
    words = [word for flag, _, words in grouped_flags(flags) if flag not in skipped for word in words]
    for word in words:  # which the loop extends
        if "/" not in word:
            continue
        for piece in re.split("[,=]", word):
            path = piece[piece.find("/") :] if "/" in piece else ""
            if path and path not in found and os.path.isfile(path):
                found[path] = None
                if piece.startswith("@"):
                    words += _words_in(path)
    return list(found)


def linked_files(flags: Iterable[str]) -> list[str]:
    """The files that link flags name and that affect the binary: archives, objects, linker scripts.

    Shared libraries do not: the binary contains only their names. The linker lists the other files that it reads.
    """
    flags = list(flags)
    names = [name.removeprefix(":") if name.startswith(":") else f"lib{name}.a" for name in _values("-l", flags)]
    words = [f"{directory}/{name}" for directory in _values("-L", flags) for name in names]
    files = dict.fromkeys([*named_files(flags), *words])
    return [name for name in files if os.path.isabs(name) and ".so" not in name and os.path.isfile(name)]


def contents_of(files: Iterable[str]) -> list[str]:
    """``name:sha256`` of each file, without its directory."""
    return [f"{os.path.basename(name)}:{file_sha256(name)}" for name in files]


def _values(flag: str, words: Iterable[str]) -> list[str]:
    """The values of a flag, in the same word or in the next one."""
    rest = iter(words)
    return [word.removeprefix(flag) or next(rest, "") for word in rest if word.startswith(flag)]


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
