"""Finding oneCCL and opening it: what is taken, what is refused, and why. tests/integration/ops/comm runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.key import plan_key
from op_builder.cpu import CCLCommBuilder
from op_builder.errors import AccelError, IncompatibleOpError, ToolchainError
from op_builder.system.outcomes import failures
from op_builder.system.records import Memo
from op_builder.toolchains import oneccl
from tests.support.compilers import needs_gxx
from tests.support.foreign_package import write_package

CONFIG = """
#define CCL_MAJOR_VERSION           2022
#define CCL_MINOR_VERSION           1
#define CCL_UPDATE_VERSION          7
#define CCL_PRODUCT_BUILD_DATE "2026-08-19T06:08:47Z"
"""


def fake(prefix: Path, library: str = "lib/libccl.so", *, with_headers: bool = True) -> Path:
    """A prefix with files of oneCCL's names, that hold nothing of it."""
    headers = {"include/oneapi/ccl/config.h": CONFIG} if with_headers else {}
    return write_package(prefix.parent, prefix.name, {library: "no library", **headers})


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no oneCCL is installed."""
    monkeypatch.delenv("CCL_ROOT", raising=False)
    monkeypatch.setattr(oneccl, "wheel_prefixes", lambda: [tmp_path / "environment"])
    monkeypatch.setattr(oneccl, "SYSTEM_PREFIXES", (tmp_path / "system",))
    return tmp_path


@pytest.mark.parametrize("library", ["lib/libccl.so", "lib64/libccl.so", "lib/x86_64-linux-gnu/libccl.so"])
def test_a_prefix_is_read_without_being_opened(library: str, tmp_path: Path) -> None:
    assert oneccl.oneccl_in(fake(tmp_path, library)) == oneccl.OneCCL(
        tmp_path, tmp_path / library, "2022.1.7.2026-08-19T06:08:47Z"
    )


def test_environments_come_before_the_system_and_ccl_root_before_all(nowhere: Path) -> None:
    assert oneccl.find_oneccl() is None
    system = fake(nowhere / "system")
    assert oneccl.require_oneccl().prefix == system
    environment = fake(nowhere / "environment")
    assert oneccl.require_oneccl().prefix == environment
    named = fake(nowhere / "named")
    with env.scope(CCL_ROOT=str(named)):
        assert oneccl.require_oneccl().prefix == named


@pytest.mark.parametrize("name", ["wrong", "x" * 300])  # the system refuses the second
def test_a_ccl_root_without_oneccl_is_an_error_even_where_there_is_another(nowhere: Path, name: str) -> None:
    fake(nowhere / "environment")
    with env.scope(CCL_ROOT=str(nowhere / name)), pytest.raises(ToolchainError, match="CCL_ROOT="):
        oneccl.require_oneccl()


def test_without_oneccl_the_op_says_what_is_missing_and_how_to_get_it(nowhere: Path) -> None:
    del nowhere
    builder = CCLCommBuilder()
    assert builder.plan().libraries == ()
    assert {failure.name for failure in failures(builder.check())} == {"oneCCL headers", "oneCCL library"}
    assert builder.is_compatible() is False
    with pytest.raises(IncompatibleOpError, match=r"no libccl\.so is installed") as caught:
        builder.load()
    assert "pip install 'oneccl-devel==2022.1.2' 'impi-rt<2021.19'" in str(caught.value)


@needs_gxx
def test_files_that_only_have_the_names_fail_the_checks(nowhere: Path, tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo")
    bare = str(fake(nowhere / "bare", with_headers=False))
    with env.scope(CCL_ROOT=bare), pytest.raises(ToolchainError, match=r"no oneapi/ccl.hpp"):
        oneccl.build_check(memo)
    fake(nowhere / "system")
    for check, words in ((oneccl.build_check, "oneapi/ccl.hpp"), (oneccl.load_check, "cannot be opened")):
        with pytest.raises(AccelError, match=words) as caught:
            check(memo)
        assert caught.value.remedy


def test_variables_that_the_user_has_set_stay(tmp_path: Path) -> None:
    library = tmp_path / "libccl.so"
    (tmp_path / "libfabric.so.1").touch()
    with env.scope(CCL_ATL_TRANSPORT=None, CCL_LOG_LEVEL="info", CCL_OFI_LIBRARY_PATH=None, FI_PROVIDER_PATH=None):
        assert oneccl.oneccl_variables(library) == {
            "CCL_ATL_TRANSPORT": "ofi",
            "CCL_OFI_LIBRARY_PATH": str(tmp_path / "libfabric.so.1"),
            "FI_PROVIDER_PATH": str(tmp_path),
        }
    with env.scope(CCL_ATL_TRANSPORT="mpi", CCL_LOG_LEVEL=None, CCL_OFI_LIBRARY_PATH=None, FI_PROVIDER_PATH=None):
        (tmp_path / "libfabric.so.1").unlink()  # an installation that knows where its own is
        assert oneccl.oneccl_variables(library) == {"CCL_LOG_LEVEL": "error"}


def test_the_key_counts_the_version_and_names_no_place(nowhere: Path, tmp_path: Path) -> None:
    def key() -> dict[str, str]:
        return dict(plan_key(CCLCommBuilder().plan(), None, Memo(tmp_path / "memo")).parts)

    fake(nowhere / "system")
    first = key()
    assert first["library ccl"] == "2022.1.7.2026-08-19T06:08:47Z"
    assert str(nowhere) not in str(first)
    moved = fake(nowhere / "elsewhere")
    with env.scope(CCL_ROOT=str(moved)):
        assert key() == first
        config = moved / "include" / "oneapi" / "ccl" / "config.h"
        config.write_text(CONFIG.replace("2026", "2027"))
        os.utime(config, ns=(1, 1))
        assert key() != first
