"""Compiler flags of one word and of two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

DIRECTORY_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter")
_VALUED_FLAGS = (*DIRECTORY_FLAGS, "-D", "-U", "-include", "-imacros", "-x")
# Their value is always a word of its own.
_TWO_WORDS = ("-Xclang", "-Xpreprocessor", "-Xassembler", "-Xlinker", "-mllvm", "--param")


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
