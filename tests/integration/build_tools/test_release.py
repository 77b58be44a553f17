"""Checks of ``make release``, on made-up wheels; a real sdist and wheel are made twice in test_wheels.py."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
import release

from tests.support.compilers import shared_library

CHANGELOG = "# Changelog\n\n## [0.2.0] - unreleased\n\n- A new op.\n\n## [0.1.0] - 2026-01-02\n\nFirst version.\n"
# The header of a library for arm64, and its LC_BUILD_VERSION: macOS 11.0.
MACOS = struct.pack("<14I", 0xFEEDFACF, 0x0100000C, 0, 6, 1, 24, 0, 0, 0x32, 24, 1, 11 << 16, 11 << 16, 0)
STABLE = 'extern "C" void PyErr_Clear(); void f() { PyErr_Clear(); }'
UNSTABLE = 'extern "C" void PyUnicode_AsUTF8(); void f() { PyUnicode_AsUTF8(); }'  # stable since 3.13


def make_wheel(directory: Path, tag: str, name: str = "pack/op.so", content: bytes = b"", year: int = 2026) -> Path:
    path = directory / f"pack-1.0-{tag}.whl"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pack/__init__.py"), b"")
        archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), content)
    return path


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release.release_notes(CHANGELOG, "0.2.0", tags="") == "- A new op.\n"
    assert release.release_notes(CHANGELOG, "0.1.0", tags="v0.1.0 other\n") == "First version.\n"


@pytest.mark.parametrize(
    ("version", "tag", "message"),
    [
        ("0.3.0", "", r"no section '## \[0\.3\.0\] - DATE'"),
        ("0.1.0", "v0.2.0", r"tag is v0\.2\.0, but op_builder/_version\.py has 0\.1\.0"),
        ("0.2.0", "v0.2.0", "has 'unreleased' instead of its date"),
    ],
)
def test_a_release_without_its_section_or_with_another_tag_is_rejected(version: str, tag: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        release.release_notes(CHANGELOG, version, tag)


def test_the_first_member_that_differs_is_named(tmp_path: Path) -> None:
    tag = "py3-none-any"
    wheel = make_wheel(tmp_path / "a", tag)
    assert release.first_difference(wheel, make_wheel(tmp_path / "b", tag)) == ""
    for message, changes in {
        "pack/op.so has other contents.": {"content": b"x"},
        "pack/op.so has other times or modes.": {"year": 2025},
        "One has pack/op.so where the other has pack/more.so.": {"name": "pack/more.so"},
    }.items():
        assert release.first_difference(wheel, make_wheel(tmp_path / "c", tag, **changes)) == message


def test_a_wheel_whose_tag_does_not_fit_its_binaries_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("lief")
    pytest.importorskip("abi3info")
    sources = (STABLE, UNSTABLE)
    plain, of_python = (shared_library(tmp_path / "op.so", text, "-nostdlib").read_bytes() for text in sources)
    machine = {62: "x86_64", 183: "aarch64"}[struct.unpack_from("<H", plain, 18)[0]]
    release.check_binaries(make_wheel(tmp_path, f"py3-none-manylinux_2_17_{machine}", content=plain))
    release.check_binaries(make_wheel(tmp_path, f"cp312-cp312-manylinux_2_17_{machine}", content=of_python))
    release.check_binaries(make_wheel(tmp_path, "py3-none-macosx_11_0_arm64", content=MACOS))
    for tag, content, message in (
        ("py3-none-manylinux_2_17_ppc64le", plain, f"pack/op.so is for manylinux {machine}"),
        ("py3-none-macosx_11_0_x86_64", MACOS, "pack/op.so is for macosx_11_0_arm64"),
        ("py3-none-macosx_10_9_arm64", MACOS, "pack/op.so is for macosx_11_0_arm64"),
        ("py3-none-any", plain, "pack/op.so is for manylinux"),
        (f"py3-none-manylinux_2_17_{machine}", of_python, "uses PyUnicode_AsUTF8, which not every Python"),
        (f"py3-none-manylinux_2_17_{machine}", b"text", "is a binary of neither Linux nor macOS"),
    ):
        with pytest.raises(SystemExit, match=message):
            release.check_binaries(make_wheel(tmp_path, tag, content=content))
    with pytest.raises(SystemExit, match="contains no binary"):
        release.check_binaries(make_wheel(tmp_path, "py3-none-any", "pack/notes.txt"))
