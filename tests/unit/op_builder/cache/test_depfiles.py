"""Depfiles are bytes: blanks separate, make's escapes count, and nothing else has a meaning."""

from __future__ import annotations

import os

import pytest

from op_builder.cache.depfiles import parse_depfile, parse_linked

# Directory names as a user may have them, in the bytes of several encodings.
NAMES = [
    *(b"plain", b"two words", b"tab\there", b"a#b", b"a$b", b"a:b", b"a|b", b"a;b&c", b"a'b", b'a"b', b"a%b", b"a\\b"),
    *(b"a\x0bb", b"a\x0cb", b"a\rb", b"a\x1cb", b"a\x85b", b"a\\ b", b"(a)[b]{c}", b"~", b"*?", b"!a", b"-a", b"=a,b"),
    *(text.encode() for text in ("\u3000", "\u2028", "\u2029", "\u00a0", "\u0085", "é", "你好", "🙂", "e\u0301")),
    *("你好".encode("gbk"), "日本".encode("shift_jis"), "é".encode("latin-1"), b"\xff\xfe", b"\x81\\x", b"\x81|"),
    b"`$(a)`",
]


def written(name: bytes) -> bytes:
    """A name as GCC and clang write it into a depfile."""
    slashes, text = 0, b""
    for byte in (name[at : at + 1] for at in range(len(name))):
        if byte in b" \t":
            text += b"\\" * (slashes + 1)
        text += {b"$": b"$", b"#": b"\\"}.get(byte, b"") + byte
        slashes = slashes + 1 if byte == b"\\" else 0
    return text


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_may_have_any_name(name: bytes) -> None:
    path = b"/x/" + name + b"/v.h"
    depfile = b"0_a.o: a.cpp \\\n " + written(path) + b" \\\n /y/last.h\n\n/y/last.h:\n"
    assert parse_depfile(depfile) == ["a.cpp", os.fsdecode(path), "/y/last.h"]


def test_the_linker_may_escape_names_or_not() -> None:
    listed = parse_linked(b"op.so: \\\n  0_a.o \\\n  /my libs/x.a \\\n  /my\\ libs/y.a\n\n/my libs/x.a:\n")
    assert {"0_a.o", "/my libs/x.a", "/my libs/y.a"} <= set(listed)
