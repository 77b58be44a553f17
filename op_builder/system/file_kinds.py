"""What a file is that is not what its name promises, from its first bytes."""

from __future__ import annotations

import codecs
from pathlib import Path

from op_builder.errors import DamagedTensorError

_DECOMPRESS = "Decompress the file first."
_FORMATS = (
    (0, b"version https://git-lfs.github.com/", "a pointer of Git LFS", "Run git lfs pull in its checkout."),
    (0, b"/annex/objects/", "a pointer of git-annex", "Run git annex get in its checkout."),
    (0, b"<!doctype", "a web page", "Download the file itself: use its direct address, and log in."),
    (0, b"<html", "a web page", "Download the file itself: use its direct address, and log in."),
    (0, b"<?xml", "an XML document", "Download the file itself; a server reports errors in XML."),
    (0, b"pk\3\4", "a zip archive, as torch.save() writes", "Load it by torch.load(), or unpack it."),
    (0, b"\x80\2", "a pickle, as an old torch.save() wrote", "Load it by torch.load()."),
    (0, b"\x80\4\x95", "a pickle", "Load it by pickle.load(), if you trust its author."),
    (0, b"\x80\5\x95", "a pickle", "Load it by pickle.load(), if you trust its author."),
    (0, b"gguf", "a GGUF file", "Load it by the package gguf."),
    (0, b"\x89hdf", "an HDF5 file", "Load it by the package h5py."),
    (0, b"\x93numpy", "a NumPy array", "Load it by numpy.load()."),
    (0, b"\x1f\x8b", "compressed by gzip", _DECOMPRESS),
    (0, b"bzh", "compressed by bzip2", _DECOMPRESS),
    (0, b"\xfd7zxz", "compressed by xz", _DECOMPRESS),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", _DECOMPRESS),
    (257, b"ustar", "a tar archive", "Unpack it."),
    (0, b"{", "a JSON text", "Download the file itself, or load what it lists, if it is a model's index."),
    (0, bytes(8), "without content: it begins with zeros", "Copy or download it again, completely."),
)  # the place of the mark, the mark in lower case, the format and what to do
# C++ sources may begin with these, too.
_MARKS_OF_TEXTS = (b"{", b"gguf", b"bzh")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
MARKS_BYTES = 262
"""How many of a file's first bytes identify its format."""


_BINARY = ("binary, or UTF-16 text", "Save it as UTF-8 text, or correct its name.")


def kind_of(begin: bytes, *, may_be_text: bool = False) -> tuple[str, str] | None:
    """The known format of a file with these first bytes and what to do about it; None for any other.

    Args:
        may_be_text: an ordinary text has no other format.
    """
    text = begin.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    found = ((name, remedy) for at, mark, name, remedy in _FORMATS if (begin if at else text).startswith(mark, at))
    return next(found, None) or (None if may_be_text else _kind_of_text(begin))


def _kind_of_text(begin: bytes) -> tuple[str, str] | None:
    """What a server or a tool for large files writes in place of a file, as "Entry not found"."""
    try:
        lines = codecs.getincrementaldecoder("utf-8")().decode(begin).strip().splitlines()
    except UnicodeDecodeError:
        return None
    if not lines or not all(line.replace("\t", " ").isprintable() for line in lines):
        return None
    return f"a text that begins with {lines[0][:40]!r}", "Download or check out the file itself."


def kind_of_file(path: str | Path, *, expected: str = "") -> tuple[str, str] | None:
    """:func:`kind_of` a file; None if it cannot be read or is ``expected``: ``text`` or ``zip``."""
    try:
        with open(path, "rb") as file:
            begin = file.read(MARKS_BYTES)
    except OSError:
        return None
    if expected == "zip" and begin.startswith(b"PK"):
        return None
    is_binary = expected == "text" and (b"\0" in begin or begin.startswith(_UTF_16))
    is_ambiguous = expected == "text" and begin.lstrip().lower().startswith(_MARKS_OF_TEXTS)
    return (None if is_ambiguous else kind_of(begin, may_be_text=expected != "zip")) or (_BINARY if is_binary else None)


def require_no_other_format(path: Path, begin: bytes) -> None:
    """Raise a DamagedTensorError that names the format if a file with these first bytes has a known one."""
    if (kind := kind_of(begin)) is not None:
        name, remedy = kind
        raise DamagedTensorError(f"{path} is not a safetensors file: it is {name}.", remedy, filename=str(path))
