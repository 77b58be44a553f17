"""What builder classes written for DeepSpeed do that others do not."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest

from op_builder.builder.inline import GivenBuilder
from op_builder.errors import LoadError
from op_builder.report.collect import op_row
from tests.support.compilers import needs_gxx, shared_library
from tests.support.foreign_package import python
from tests.support.small_ops import MODULE


def answer(declaration: str = "", value: str = "42", include_dirs: Sequence[str] = ()) -> GivenBuilder:
    text = f"{declaration}\n#define VALUE {value}\n{MODULE}"
    return GivenBuilder("answer", {"answer.cpp": text}, include_dirs=include_dirs)


def test_an_include_directory_that_does_not_exist_is_ignored_and_reported(tmp_path: Path) -> None:
    builder = answer(value="7", include_dirs=[str(tmp_path), "csrc/absent", str(tmp_path / "absent")])
    assert builder.plan().include_dirs == (tmp_path,)
    row = op_row(builder)
    assert row.compatible
    assert f"do not exist are ignored: csrc/absent, {tmp_path / 'absent'}" in row.reason
    assert builder.load().value() == 7


def test_the_path_of_a_missing_source_is_where_it_would_be() -> None:
    builder = type("HereBuilder", (GivenBuilder,), {"__module__": __name__})("here", {})
    assert builder.deepspeed_src_path("absent.cpp") == str(Path(__file__).parent / "absent.cpp")
    assert builder.deepspeed_src_path("/absent.cpp") == "/absent.cpp"
    assert builder.deepspeed_src_path(Path(__file__).name) == __file__


USES_CPP_EXTENSION = """
import sys, torch
from op_builder.builder import CPUOpBuilder

class ToolkitBuilder(CPUOpBuilder):
    NAME = "toolkit"

    def sources(self):
        return []

    def is_compatible(self, verbose=False):
        return torch.utils.cpp_extension.CUDA_HOME is None or True

builder = ToolkitBuilder()
assert "setuptools" not in sys.modules
assert builder.is_compatible()
from torch.utils.cpp_extension import BuildExtension
assert BuildExtension.__name__ == "BuildExtension"
"""


def test_is_compatible_may_use_cpp_extension_without_its_import() -> None:
    done = python("-c", USES_CPP_EXTENSION)
    assert done.returncode == 0, done.stderr


@needs_gxx
def test_a_symbol_that_this_process_offers_to_all_libraries_is_found(tmp_path: Path) -> None:
    builder = answer('extern "C" int acme_value(void);', "acme_value()")
    with pytest.raises(LoadError, match="acme_value"):
        builder.load()
    library = shared_library(tmp_path / "libacme_offered.so", 'extern "C" int acme_value() { return 9; }\n')
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    assert builder.load().value() == 9
