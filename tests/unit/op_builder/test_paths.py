"""Sources are found absolute, from the project's root, or from the package of the class that names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder import paths
from op_builder.errors import SourceNotFoundError
from tests.support.foreign_package import importable, load_module, write_package


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[type]:
    """A builder class in another project's package."""
    files = {"kernels/k.cpp": "", "builders.py": "class VendorBuilder:\n    pass\n"}
    write_package(tmp_path, "vendor_ops_for_paths", files)
    with importable(tmp_path, "vendor_ops_for_paths"):
        yield load_module("vendor_ops_for_paths.builders").VendorBuilder


def test_a_source_is_relative_to_the_package_of_the_class_or_of_a_base_class_or_to_its_parent(vendor: type) -> None:
    derived = type("Derived", (vendor,), {"__module__": "__main__"})
    for cls, name in (
        (vendor, "kernels/k.cpp"),
        (vendor, "vendor_ops_for_paths/kernels/k.cpp"),
        (derived, "kernels/k.cpp"),
    ):
        assert paths.resolve(name, cls).name == "k.cpp"


def test_label_is_free_of_the_machines_paths(vendor: type) -> None:
    path = paths.resolve("kernels/k.cpp", vendor)
    assert paths.label(path, vendor) == "kernels/k.cpp"
    assert paths.label(paths.native_root() / "csrc" / "a.cpp", vendor) == "csrc/a.cpp"
    assert paths.label(Path("/somewhere/else.cpp")) == "else.cpp"


def test_missing_source_lists_every_place_it_was_looked_for(vendor: type) -> None:
    with pytest.raises(SourceNotFoundError) as caught:
        paths.resolve("kernels/absent.cpp", vendor)
    message = str(caught.value)
    assert "kernels/absent.cpp" in message
    assert "VendorBuilder" in message
    assert message.count("absent.cpp") >= 3
    assert "Remedy" in message


def test_a_source_in_a_zip_file_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "ops.zip").write_bytes(b"PK")
    with pytest.raises(SourceNotFoundError, match="does not exist") as caught:
        paths.resolve(tmp_path / "ops.zip" / "acme" / "a.cpp")
    assert "unpacked" in caught.value.remedy
