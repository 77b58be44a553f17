from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from op_builder.errors import IncompatibleOpError
from op_builder.system.records import Memo
from op_builder.system.target import requested_target
from op_builder.toolchains import packaged, sycl
from op_builder.toolchains.sycl import SyclToolchain


@pytest.fixture
def ziglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ziglang").mkdir()
    for name in ("__init__.py", "zig"):
        (tmp_path / "ziglang" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("ziglang")
def test_headers_of_this_systems_packages_are_found_after_all_others() -> None:
    # Debian's Python.h includes <x86_64-linux-gnu/python3.11/pyconfig.h>.
    here, elsewhere = (packaged.packaged_command("c++", target) for target in (None, requested_target("linux_aarch64")))
    assert here is not None
    assert elsewhere is not None
    assert here[-2:] == ("-idirafter", "/usr/include")
    assert "/usr/include" not in elsewhere


def test_sycl_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sycl, "find_cxx", lambda _: SimpleNamespace(is_zig=True))
    monkeypatch.setattr(sycl, "find_runtime", lambda: SimpleNamespace(prefix="/opt/sycl"))
    with pytest.raises(IncompatibleOpError, match=r"types of libstdc\+\+") as caught:
        sycl.host_check(SyclToolchain.RTC, Memo())
    assert "Install g++ or clang++" in caught.value.remedy


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("-Wl,-Bsymbolic-functions", []),
        ("-Wl,--exclude-libs,ALL,-z,now", ["-Wl,-z,now"]),
        ("-Wl,--exclude-libs=ALL", []),
        ("-Wl,-hlibx.so", ["-Wl,-soname,libx.so"]),
        ("-Wl,-h,libx.so,--as-needed", ["-Wl,-soname,libx.so,--as-needed"]),
        ("-Wl,-z,pack-relative-relocs,-O1", ["-Wl,-O1"]),
        ("-Wl,--package-metadata={}", []),
        ("--hidden,x", ["--hidden,x"]),
    ],
)
def test_linker_arguments_that_zig_refuses_are_translated_or_omitted(given: str, kept: list[str]) -> None:
    assert packaged.supported_link_flags(["a.o", given]) == ["a.o", *kept]
