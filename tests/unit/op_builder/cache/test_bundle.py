"""What an import refuses; with a binary of a few bytes, so that no compiler is needed."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from op_builder.cache.bundle import BundleError, import_bundle
from op_builder.cache.key import platform_name
from op_builder.cache.manifest import Manifest
from op_builder.cache.store import Cache
from op_builder.commands.cache import main
from op_builder.system.records import encode
from tests.support import entries
from tests.support.mutations import damaged, hostile

EXECUTABLE = Path("/proc/self/exe").read_bytes()[:64]
LIBRARY = EXECUTABLE[:16] + struct.pack("=H", 3) + EXECUTABLE[18:] + bytes(1000)
OTHER_MACHINE = LIBRARY[:18] + bytes([LIBRARY[18] ^ 0xFF]) + LIBRARY[19:]


Refused = Callable[[Path], str]


def manifest(content: bytes = LIBRARY) -> Manifest:
    return entries.manifest(content, platform=platform_name())


def bundle(
    path: Path, made: Manifest, content: bytes = LIBRARY, *, text: str = "", base: str = "", extra: str = ""
) -> Path:
    """A bundle of one entry, whose manifest and names can be others than an export's."""
    base = base or f"{made.op}/{made.key.plan.digest}/{made.key.digest}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"{base}/manifest.json", text or made.to_json())
        file.writestr(f"{base}/{made.artifact}", content)
        if extra:
            file.writestr(extra, "x")
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], cache: Cache) -> Refused:
    """Imports a bundle, which is refused; returns the message. Nothing else is printed."""

    def message(path: Path) -> str:
        assert main(["import", str(path), "--directory", str(cache.root)]) == 2
        assert cache.entries() == []
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.replace("\n", "").isprintable()
        assert shown.err.count(str(path)) == 1
        assert shown.err.count("Remedy:") == 1
        return shown.err

    return message


def test_a_binary_for_macos_is_no_elf_file(tmp_path: Path, cache: Cache) -> None:
    content = b"\xcf\xfa\xed\xfe" + bytes(60)  # Mach-O
    made = entries.manifest(content, platform="darwin arm64")
    assert len(import_bundle(cache, bundle(tmp_path / "x.zip", made, content))) == 1


@pytest.mark.parametrize(
    "content",
    [b"", LIBRARY[:19], OTHER_MACHINE, LIBRARY[:16] + struct.pack("=H", 2) + LIBRARY[18:]],
    ids=["empty", "torn", "another machine's", "a program"],
)
def test_a_binary_that_this_machine_cannot_load_is_refused(refused: Refused, tmp_path: Path, content: bytes) -> None:
    assert "not a shared library" in refused(bundle(tmp_path / "x.zip", manifest(content), content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "header"}, "precompiled header"),
        ({"kind": "program"}, "'kind' is not valid"),
        ({"artifact": "../../o.so"}, "'artifact' is not valid"),
        ({"artifact": "nul\0.so"}, "'artifact' is not valid"),
        ({"artifact": "manifest.json"}, "does not contain"),
        ({"op": "\x1b[2J"}, "'op' is not valid"),
        ({"size_bytes": 7}, "bytes; its manifest says 7"),
        ({"sha256": "0" * 64}, "does not match its manifest"),
    ],
    ids=str,
)
def test_a_crafted_manifest_is_refused(refused: Refused, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    record, number = entries.members_of(manifest().to_json())
    text = encode({**record, **change}, number)
    assert words in refused(bundle(tmp_path / "x.zip", manifest(), text=text))


@pytest.mark.parametrize(
    ("base", "extra", "words"),
    [
        ("small/a/b", "", "does not contain"),
        ("../up/b", "", "does not contain"),
        ("small/a/\x1b[2J", "", "not a file of an op"),
        ("", "small/a/nul\0here/x", "not a file of an op"),
        ("", "../../../up", "belong to no op"),
        ("", "caf\u00e9/a/b/x", "not a file of an op"),
    ],
)
def test_crafted_names_are_refused(refused: Refused, tmp_path: Path, base: str, extra: str, words: str) -> None:
    path = bundle(tmp_path / "x.zip", manifest(), base=base, extra=extra.replace("\0", "@"))
    path.write_bytes(path.read_bytes().replace(b"nul@here", b"nul\0here"))
    assert words in refused(path)


def test_a_bundle_with_two_files_of_one_name_is_refused_and_the_message_has_the_name(
    refused: Refused, tmp_path: Path
) -> None:
    path = bundle(tmp_path / "x.zip", manifest(), extra="small/a/b/first.so")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("small/a/b/other.so", "y")
    path.write_bytes(path.read_bytes().replace(b"other.so", b"first.so"))
    assert "contains two files named 'small/a/b/first.so'" in refused(path)


@pytest.mark.parametrize("is_honest", [True, False])
def test_a_bundle_that_expands_without_end_is_refused_and_takes_no_memory(
    refused: Refused, tmp_path: Path, is_honest: bool
) -> None:
    size, claimed = 200 << 20, 1000
    sha256 = hashlib.sha256(bytes(claimed)).hexdigest()
    made = manifest()._replace(size_bytes=size if is_honest else claimed, sha256=sha256)
    path = bundle(tmp_path / "x.zip", made, bytes(size))
    if not is_honest:
        path.write_bytes(path.read_bytes().replace(struct.pack("<L", size), struct.pack("<L", claimed)))
    tracemalloc.start()
    try:
        message = refused(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert ("would expand to" if is_honest else "cannot be read") in message


def test_damaged_and_hostile_bundles_are_one_error(cache: Cache, tmp_path: Path) -> None:
    path, refused = tmp_path / "x.zip", 0
    whole = bundle(path, manifest()).read_bytes()
    record, number = entries.members_of(manifest().to_json())
    texts = [encode(variant, number) for variant in hostile(record, 300, 2)]
    variants = [*damaged(whole, 300, 1), *(bundle(path, manifest(), text=text).read_bytes() for text in texts)]
    for variant in variants:
        path.write_bytes(variant)
        try:
            imported = import_bundle(cache, path)
        except BundleError:
            refused += 1
        else:
            assert all(entry.is_intact() for entry in imported)
    assert refused > 500
