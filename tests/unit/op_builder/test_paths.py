"""Sources are found absolute, from the project's root, or from the package of the class that names them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from op_builder import paths
from op_builder.errors import SourceNotFoundError


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """A builder class in a package of somebody else's."""
    package = tmp_path / "vendor_ops_for_paths"
    (package / "kernels").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels" / "k.cpp").write_text("")
    (package / "builders.py").write_text("class VendorBuilder:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("vendor_ops_for_paths.builders").VendorBuilder
    for name in [name for name in sys.modules if name.startswith("vendor_ops_for_paths")]:
        del sys.modules[name]


def test_relative_to_the_package_of_the_class(vendor: type) -> None:
    assert paths.resolve("kernels/k.cpp", vendor).name == "k.cpp"


def test_relative_to_the_parent_of_the_package(vendor: type) -> None:
    assert paths.resolve("vendor_ops_for_paths/kernels/k.cpp", vendor).name == "k.cpp"


def test_class_derived_elsewhere_still_finds_the_base_class_files(vendor: type) -> None:
    derived = type("Derived", (vendor,), {"__module__": "__main__"})
    assert paths.resolve("kernels/k.cpp", derived).name == "k.cpp"


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
