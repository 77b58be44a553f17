"""Checks of ``make release``, on made-up wheels; a real sdist and wheel are made twice in test_wheels.py."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import release

CHANGELOG = "# Changelog\n\n## [0.2.0] - unreleased\n\n- A new op.\n\n## [0.1.0] - 2026-01-02\n\nFirst version.\n"


def make_wheel(directory: Path, tag: str, content: bytes) -> Path:
    path = directory / f"pack-1.0-{tag}.whl"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pack/__init__.py"), b"")
        archive.writestr(zipfile.ZipInfo("pack/op.so"), content)
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


def test_two_builds_that_differ_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wheels = [
        make_wheel(tmp_path / name, "py3-none-any", content=content)
        for name, content in zip("abc", (b"", b"", b"x"), strict=True)
    ]
    release.require_equal(*wheels[:2])
    with pytest.raises(SystemExit, match="differ"):
        release.require_equal(*wheels[1:])
    assert len([*tmp_path.glob("accel-ops-differ-*/*/*.whl")]) == 2


FITTING = {"sym_tag": "manylinux_2_17_x86_64", "unsupported_isa": False, "external_libs": {"libtorch_cpu.so": None}}


@pytest.mark.parametrize(
    ("promised", "changes", "words"),
    [
        ("manylinux_2_17_x86_64", {}, ""),
        ("manylinux_2_28_x86_64", {}, ""),
        ("manylinux_2_5_x86_64", {}, "need manylinux_2_17_x86_64"),
        ("manylinux_2_17_aarch64", {}, "need manylinux_2_17_x86_64"),
        ("manylinux_2_17_x86_64", {"unsupported_isa": True}, "newer CPU"),
        ("manylinux_2_17_x86_64", {"external_libs": {"libaio.so.1": None}}, "need libaio.so.1"),
    ],
)
def test_a_wheel_whose_tag_does_not_fit_its_binaries_is_rejected(
    promised: str, changes: dict[str, object], words: str
) -> None:
    machine_rejection = release.platform_rejection(promised, {**FITTING, **changes})
    assert words in machine_rejection
    assert bool(machine_rejection) is bool(words)
