"""Which toolchain a SYCL op is compiled with, and the texts of its kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from op_builder.errors import SourceNotFoundError
from op_builder.system.outcomes import Passed
from op_builder.toolchains.sycl import SyclFacts, choose
from op_builder.toolchains.sycl_runtime import SyclRuntime
from op_builder.toolchains.sycl_texts import collect_texts

RUNTIME = SyclRuntime(Path("/p"), "9.0.0 (20260930)", 9, Path("/p/lib/libsycl-jit.so"), None)
XPU = SyclFacts("20250302", "/oneapi/icpx", False, RUNTIME, has_kernel_texts=True, ahead_runtime=RUNTIME)
PLAIN = SyclFacts(None, None, False, RUNTIME, has_kernel_texts=True)
ICPX = replace(PLAIN, icpx="/oneapi/icpx")


@pytest.mark.parametrize(
    ("facts", "name", "words"),
    [
        (XPU, "icpx", "torch for XPU 20250302"),
        (replace(XPU, icpx=None), "sycl-rtc", "libsycl 9.0.0"),
        (replace(XPU, has_ipex=True), "icpx", "torch for XPU"),
        (replace(XPU, requested="sycl-rtc"), "sycl-rtc", "libsycl 9.0.0"),
        (replace(ICPX, has_ipex=True, ahead_runtime=RUNTIME), "ipex", "intel_extension_for_pytorch"),
        (PLAIN, "sycl-rtc", "libsycl 9.0.0"),
        (ICPX, "sycl-rtc", "libsycl 9.0.0"),
    ],
)
def test_the_first_toolchain_that_works_is_chosen(facts: SyclFacts, name: str, words: str) -> None:
    found = choose(facts)
    assert isinstance(found, Passed)
    assert (found.name, words in found.detail) == (name, True)


@pytest.mark.parametrize(
    ("facts", "nearest", "reason", "remedy"),
    [
        (replace(PLAIN, runtime=None), "sycl-rtc", "No SYCL runtime", "pip install intel-sycl-rt intel-opencl-rt"),
        (replace(PLAIN, runtime=replace(RUNTIME, kernel_compiler=None)), "sycl-rtc", "libsycl-jit.so", "pip install"),
        (replace(PLAIN, has_kernel_texts=False), "icpx", "torch is not an XPU build", "whl/xpu"),
        (replace(XPU, icpx=None, has_kernel_texts=False), "icpx", "icpx is not on PATH", "setvars.sh"),
        (replace(XPU, ahead_runtime=None, requested="icpx"), "icpx", "Neither /oneapi/icpx's own", "setvars.sh"),
        (replace(PLAIN, requested="icpx"), "icpx", "torch is not an XPU build", "whl/xpu"),
        (replace(XPU, requested="ipex"), "ipex", "intel_extension_for_pytorch is not installed", "Install it"),
    ],
)
def test_without_one_the_reason_and_the_remedy_are_those_of_the_nearest(
    facts: SyclFacts, nearest: str, reason: str, remedy: str
) -> None:
    found = choose(facts)
    assert not isinstance(found, Passed)
    assert found.name == nearest
    assert reason in found.reason
    assert remedy in found.remedy


def write_texts(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_kernel_texts_bring_the_headers_they_include_and_no_place_of_this_machine(tmp_path: Path) -> None:
    included = '#include "beside.h"\n#include "deep.h"\n#include <sycl/half_type.hpp>\n'
    ends_a_literal = '#include "missing.h"\n// ends a literal: )accel"\n'
    write_texts(tmp_path, {"k/a.hpp": included, "k/beside.h": ends_a_literal, "shared/deep.h": "#pragma once\n"})
    texts = collect_texts([tmp_path / "k" / "a.hpp"], [tmp_path / "shared"], ["-O1"], SyclFacts)
    assert list(texts.files) == ["include0/a.hpp", "include0/beside.h", "include1/deep.h"]
    assert texts.own_count == 1
    assert texts.options == ("-I/accel_ops_kernels/include1", "-O1")
    source = texts.as_source()
    assert str(tmp_path) not in source
    assert 'R"accel_(' in source


def test_headers_of_one_name_in_several_directories_stay_apart(tmp_path: Path) -> None:
    kernel = '#include "config.h"\n#include "of_b.h"\n'
    texts = {"k/k.hpp": kernel, "a/include/config.h": "// a\n", "b/include/config.h": "// b\n"}
    write_texts(tmp_path, {**texts, "b/include/of_b.h": '#include "config.h"\n'})
    places = [tmp_path / "a/include", tmp_path / "b/include"]
    found = collect_texts([tmp_path / "k/k.hpp"], places, [], SyclFacts)
    assert found.files["include1/config.h"] == "// a\n"
    assert found.files["include2/config.h"] == "// b\n"
    assert found.options == ("-I/accel_ops_kernels/include1", "-I/accel_ops_kernels/include2")


def test_a_text_that_no_name_would_find_and_a_name_for_two_texts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path, {"k/k.hpp": '#include "../other/x.h"\n', "other/x.h": ""})
    with pytest.raises(SourceNotFoundError, match=r"other/x\.h lies outside"):
        collect_texts([tmp_path / "k/k.hpp"], [], [], SyclFacts)
    write_texts(tmp_path, {"own/include0/x.h": "// own\n", "own/k.hpp": '#include "include0/x.h"\n#include "y.h"\n'})
    write_texts(tmp_path, {"far/y.h": '#include "x.h"\n', "far/x.h": "// far\n"})
    monkeypatch.setattr("op_builder.paths.outermost_bases", lambda _owner: [tmp_path / "own"])
    with pytest.raises(SourceNotFoundError, match="would both be named"):
        collect_texts([tmp_path / "own/k.hpp"], [tmp_path / "far"], [], SyclFacts)
