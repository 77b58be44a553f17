from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.manifest import Manifest
from op_builder.prebuild import tags
from op_builder.system.target import requested_target


def needing(*parts: str, **needs: str) -> Manifest:
    """A manifest with what the tag depends on: the names of its key's parts, and what it needs."""
    members: dict[str, Any] = {**dict.fromkeys(Manifest._fields), "key_parts": dict.fromkeys(parts, ""), "needs": needs}
    return Manifest(**members)


@pytest.fixture
def on_glibc_2_36(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(tags.platform, "machine", lambda: "aarch64")


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        pytest.param([{}], "2_17", id="nothing"),
        pytest.param([{"GLIBC": "2.2.5", "GCC": "14.0.0"}], "2_17", id="less than the oldest tag"),
        pytest.param([{"GLIBC": "2.32", "GLIBCXX": "3.4.21", "CXXABI": "1.3.9"}], "2_32", id="glibc decides"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.29"}], "2_34", id="GLIBCXX decides"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.21", "CXXABI": "1.3.11"}], "2_27", id="CXXABI decides"),
        pytest.param([{"GLIBC": "2.28"}, {"GLIBCXX": "3.4.28"}, {"GLIBC": "2.9"}], "2_31", id="the most of several"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.99"}], "2_36", id="no more than the C library here"),
    ],
)
@pytest.mark.usefixtures("on_glibc_2_36")
def test_the_platform_is_the_oldest_c_library_that_has_what_all_need(
    needs: list[dict[str, str]], expected: str
) -> None:
    assert tags.wheel_tag([needing(**each) for each in needs]) == f"py3-none-manylinux_{expected}_aarch64"


@pytest.mark.usefixtures("on_glibc_2_36")
def test_a_binary_for_one_python_ties_the_wheel_to_it() -> None:
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert tags.wheel_tag([needing(), needing("library tvm_ffi")]).startswith("py3-none-")
    assert tags.wheel_tag([needing(), needing("python abi")]) == f"{here}-{here}-manylinux_2_17_aarch64"


def test_a_wheel_for_another_platform_has_the_tag_of_the_oldest_system_that_has_what_all_need() -> None:
    with env.scope(ACCEL_BUILD_TARGET="linux_aarch64"):
        assert tags.wheel_tag([needing(GLIBC="2.17"), needing(GLIBC="2.99")], requested_target()) == (
            "py3-none-manylinux_2_99_aarch64"
        ), "whatever the C library here"
    with env.scope(ACCEL_BUILD_TARGET="macosx_arm64"):
        found = tags.wheel_tag([needing(macOS="11.0"), needing(macOS="12.3")], requested_target())
    assert found == "py3-none-macosx_12_3_arm64"


def test_where_the_c_library_is_another_the_platform_is_what_pip_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("packaging.tags.platform_tags", lambda: iter(["musllinux_1_2_x86_64", "linux_x86_64"]))
    assert tags.wheel_tag([needing()]) == "py3-none-musllinux_1_2_x86_64"


def test_gccs_libraries_are_as_old_as_the_manylinux_policies_say() -> None:
    found = importlib.util.find_spec("auditwheel")
    if found is None or found.origin is None:
        pytest.skip("auditwheel is not installed")
    policies = json.loads(Path(found.origin).with_name("policy").joinpath("manylinux-policy.json").read_text())
    symbols = {policy["name"]: policy["symbol_versions"].get("x86_64") for policy in policies}
    compared = 0
    for (major, minor), glibcxx, cxxabi in tags.GCC_LIBRARIES:
        if allowed := symbols.get(f"manylinux_{major}_{minor}"):
            assert ".".join(map(str, glibcxx)) in allowed["GLIBCXX"], (major, minor)
            assert ".".join(map(str, cxxabi)) in allowed["CXXABI"], (major, minor)
            compared += 1
    assert compared >= 4
