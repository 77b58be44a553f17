"""What binaries for other platforms may need, found out without opening them."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.cpu import PinMemoryBuilder
from op_builder.engine.stable_abi import check_target_functions
from op_builder.errors import LoadError
from op_builder.toolchains.toolset import find_cxx

ARTIFACT = Path("acme.so")
FOUND = {"malloc@GLIBC_2.17", "_free@/usr/lib/libSystem.B.dylib", "PyErr_CheckSignals", "__cxa_finalize"}


def test_functions_of_torch_2_10_and_of_the_systems_libraries_are_accepted() -> None:
    builder = PinMemoryBuilder()
    functions = {"torch_call_dispatcher", "aoti_torch_library_init_def", "aoti_torch_aten_pad"}
    check_target_functions(ARTIFACT, builder.plan(), "accel", FOUND | functions, find_cxx(builder.cache.memo))


@pytest.mark.parametrize("name", ["torch_from_blob", "aoti_torch_no_such", "acme_missing", "_ZN2at3addEv"])
def test_another_function_is_an_error_that_names_it(name: str) -> None:
    builder = PinMemoryBuilder()
    with pytest.raises(LoadError, match=rf"0x020a000000000000\): {name}\."):
        check_target_functions(ARTIFACT, builder.plan(), "accel", FOUND | {name}, find_cxx(builder.cache.memo))


def test_ops_that_only_an_opened_library_names_are_refused() -> None:
    builder = PinMemoryBuilder()
    with pytest.raises(LoadError, match="cannot be opened here"):
        check_target_functions(ARTIFACT, builder.plan(), "torch_library", set(), find_cxx(builder.cache.memo))
