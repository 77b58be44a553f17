from __future__ import annotations

import base64
import csv
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import pytest
from accel_ops_build import wheels


def make_wheel(directory: Path, *files: str) -> Path:
    """A wheel as setuptools makes it: pure, for any platform."""
    path = directory / "acme_ops-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, name)
        archive.writestr("acme_ops-1.2.dist-info/METADATA", "Metadata-Version: 2.4\nName: acme-ops\nVersion: 1.2\n")
        archive.writestr(
            "acme_ops-1.2.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\n\n",
        )
        archive.writestr("acme_ops-1.2.dist-info/RECORD", "acme_ops/__init__.py,sha256=outdated,1\n")
    return path


def test_ops_of_an_earlier_build_are_not_unpacked(tmp_path: Path) -> None:
    kept = ("acme_ops/__init__.py", "acme_ops/_prebuilt_notes.txt")
    left = ("acme_ops/_prebuilt/wheel.json", "acme_ops/_prebuilt/ops/a/b/old.so", "acme_ops/deep/_prebuilt/old.so")
    wheels.unpack(make_wheel(tmp_path, *kept, *left), tmp_path / "tree")
    files = [path.relative_to(tmp_path / "tree").as_posix() for path in (tmp_path / "tree").rglob("*.*[!o]")]
    assert sorted(name for name in files if "dist-info" not in name) == sorted(kept)


def test_a_plain_wheel_with_ops_is_rejected(tmp_path: Path) -> None:
    wheels.reject_ops(make_wheel(tmp_path, "acme_ops/_prebuilt_notes.txt"))
    with pytest.raises(SystemExit, match=r"acme_ops/_prebuilt/x\.so"):
        wheels.reject_ops(make_wheel(tmp_path, "acme_ops/_prebuilt/x.so"))


def test_a_packed_wheel_names_its_tag_and_records_every_file(tmp_path: Path) -> None:
    pytest.importorskip("wheel")
    tree = tmp_path / "tree"
    wheels.unpack(make_wheel(tmp_path, "acme_ops/__init__.py", "acme_ops/odd, name.txt"), tree)
    (tree / "acme_ops" / "_prebuilt").mkdir()
    (tree / "acme_ops" / "_prebuilt" / "new.so").write_bytes(b"\x7fELF" + bytes(1000))
    name = wheels.pack(tree, tmp_path, "py3-none-manylinux_2_28_x86_64")
    assert name == "acme_ops-1.2-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(tmp_path / name) as packed:
        contents = {each: packed.read(each) for each in packed.namelist()}
    facts = contents["acme_ops-1.2.dist-info/WHEEL"].decode().splitlines()
    assert facts == ["Wheel-Version: 1.0", "Root-Is-Purelib: false", "Tag: py3-none-manylinux_2_28_x86_64"]
    record = "acme_ops-1.2.dist-info/RECORD"
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(contents[record].decode()))}
    assert set(rows) == set(contents)
    assert "acme_ops/_prebuilt/new.so" in rows
    assert rows.pop(record) == ["", ""]
    for each, (digest, size) in rows.items():
        expected = base64.urlsafe_b64encode(hashlib.sha256(contents[each]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={expected}", str(len(contents[each]))), each


def test_without_the_package_wheel_the_build_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wheel", None)
    with pytest.raises(SystemExit, match="pip install wheel"):
        wheels.require_packer()
