"""Packages of other distributions that have the names of ours: which file is whose."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

import pytest

from op_builder.report.machine import parts
from op_builder.system.foreign_packages import foreign_packages


def install(site: Path, distribution: str, name: str, text: str) -> None:
    """Write a package and its record, as pip does."""
    file = site / name / "__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    information = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    with (information / "RECORD").open("a") as record:
        record.write(f"{name}/__init__.py,sha256={digest},{len(text)}\n")


def ours(site: Path) -> Path:
    for name in ("accelerator", "op_builder"):
        install(site, "accel-ops", name, f"# {name} of accel-ops")
    (site / "op_builder" / "_version.py").touch()
    return site


def test_nothing_is_reported_without_other_packages(tmp_path: Path) -> None:
    root = ours(tmp_path / "site")
    assert foreign_packages(root, [str(tmp_path), str(root)]) == []
    assert foreign_packages() == []


def test_another_copy_of_accel_ops_is_not_in_the_way(tmp_path: Path) -> None:
    root = ours(tmp_path / "site")
    assert foreign_packages(root, [str(ours(tmp_path / "checkout")), str(root)]) == []


def test_an_installed_package_that_comes_first_is_named_with_its_distribution(tmp_path: Path) -> None:
    root, other = ours(tmp_path / "checkout"), tmp_path / "site"
    install(other, "exax", "accelerator", "# a job scheduler")
    (found,) = foreign_packages(root, [str(other), str(root)])
    assert found.name == "accelerator"
    assert f"{other / 'accelerator' / '__init__.py'} belongs to exax 1.0" in found.reason
    assert str(root / "accelerator") in found.reason
    assert "`pip uninstall exax`" in found.remedy


def test_a_directory_of_the_same_name_is_named(tmp_path: Path) -> None:
    root, here = ours(tmp_path / "site"), tmp_path / "here"
    (here / "op_builder").mkdir(parents=True)
    (here / "op_builder" / "__init__.py").touch()
    (here / "accelerator.py").touch()
    found = foreign_packages(root, [str(here), str(root)])
    assert [each.name for each in found] == ["accelerator", "op_builder"]
    assert f"Rename {here / 'accelerator.py'}" in found[0].remedy
    assert "another directory" in found[1].remedy


def test_a_package_installed_over_ours_is_named_with_the_owner_of_the_content(tmp_path: Path) -> None:
    root = ours(tmp_path / "site")
    install(root, "exax", "accelerator", "# a job scheduler")
    (found,) = foreign_packages(root, [str(root)])
    assert "belongs to both accel-ops and exax 1.0; its content is that of exax 1.0" in found.reason
    assert "`pip uninstall exax`, then" in found.remedy


def test_a_removed_current_directory_and_a_damaged_record_do_not_end_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert foreign_packages() == []
    site = tmp_path / "site"
    install(site, "exax", "accelerator", "")
    (site / "exax-1.0.dist-info" / "RECORD").write_bytes(b"\xff")
    monkeypatch.setattr("sys.path", [str(site), *sys.path])
    assert "UnicodeDecodeError" in parts()["packages"]["error"]
