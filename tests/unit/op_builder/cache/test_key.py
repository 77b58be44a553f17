"""Keys change with everything that can change the binary, and with nothing else."""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from pathlib import Path

import pytest

from op_builder.cache.depfiles import parse_depfile, parse_linked
from op_builder.cache.key import BuildKey, Header, PlanKey, Roots, SystemHeaders, cpu_digest, plan_key, saved_since
from op_builder.cache.store import Cache
from op_builder.plan import Binding, BuildPlan
from op_builder.system import torch_install
from op_builder.system.file_contents import file_sha256, settled_status
from op_builder.system.records import Memo
from op_builder.toolchains.toolset import Compiler, Toolset
from tests.support.small_ops import SmallBuilder, make_small, replace_content

TOOLSET = Toolset(Compiler(("g++",), "/usr/bin/g++-12", "g++ 12.2.0", "x86_64-linux-gnu", is_gcc=True))


def key_of(builder: SmallBuilder, binding: Binding = Binding.STABLE) -> PlanKey:
    return plan_key(builder.plan()._replace(binding=binding), TOOLSET, builder.cache.memo)


def test_torchs_headers_and_the_abis_count_where_the_binding_is_torchs_own(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [key_of(small, binding=binding) for binding in (Binding.STABLE, Binding.TORCH)]
    assert set(before[1].parts) - set(before[0].parts) == {
        "python abi",
        "python headers",
        "torch c++ abi",
        "torch headers",
    }
    monkeypatch.setattr("op_builder.cache.key.header_stamp", lambda *_: "2.99.0")
    assert key_of(small).digest == before[0].digest
    assert key_of(small, binding=Binding.TORCH).digest != before[1].digest


def test_the_stamp_of_torchs_headers_is_that_of_their_hashes_in_its_install_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = torch_install.torch_install()
    record = tmp_path / f"torch-{install.version}.dist-info" / "RECORD"
    record.parent.mkdir()
    monkeypatch.setattr(torch_install, "torch_install", lambda: install._replace(root=tmp_path / "torch"))

    def stamp(header: str, program: str) -> str:
        lines = f"torch/include/torch/extension.h,sha256={header},1\n../../../bin/torchrun,sha256={program},1\n"
        replace_content(record, lines.encode())
        return torch_install.header_stamp(Memo(tmp_path / "memo"))

    first = stamp("one", "one")
    assert stamp("one", "two") == first
    assert stamp("two", "one") != first


def test_the_cpu_counts_under_march_native_alone(small: SmallBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("op_builder.cache.key.cpu_digest", lambda: "of this one")
    for flags, counts in ([], False), (["-march=native"], True):
        small.flags = flags
        before = key_of(small).digest
        with monkeypatch.context() as another:
            another.setattr("op_builder.cache.key.cpu_digest", lambda: "of another")
            assert (key_of(small).digest != before) is counts


def test_another_cpu_has_another_digest_whatever_its_speed_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(model: str, flags: str, speed: int) -> str:
        text = f"processor : 0\nmodel name : {model}\ncpu MHz : {speed}\nflags : {flags}\n\nprocessor : 1\n"
        monkeypatch.setattr(Path, "read_text", lambda _: text)
        return cpu_digest.__wrapped__()

    cpus = [("One", "fpu sse"), ("One", "fpu sse avx99"), ("Other", "fpu sse")]
    digests = {digest(*cpu, 1000) for cpu in cpus}
    assert len(digests) == len(cpus)
    assert digest(*cpus[0], 2000) in digests


# Headers ------------------------------------------------------------------------------------


def header_of(builder: SmallBuilder, name: str) -> tuple[Header, Roots]:
    roots = Roots.of(builder.plan())
    path = str(builder.directory / "include" / name)
    root, relative = roots.name(os.path.realpath(path))
    return Header(root, relative, file_sha256(path), settled_status(path)), roots


def test_a_header_is_unchanged_with_other_times_and_in_a_moved_tree(
    small: SmallBuilder, tmp_path: Path, cache: Cache
) -> None:
    header, roots = header_of(small, "nested.h")
    assert (header.root, header.path) == ("include1", "nested.h")
    os.utime(small.directory / "include" / "nested.h", (1, 1))
    assert header.is_unchanged(roots)
    assert not header._replace(root="include7").is_unchanged(roots), "this plan has no such place"
    shutil.copytree(small.directory, tmp_path / "moved")
    assert header.is_unchanged(Roots.of(SmallBuilder(tmp_path / "moved", cache).plan()))


def test_a_header_with_other_content_of_the_same_size_and_time_is_changed(small: SmallBuilder) -> None:
    header, roots = header_of(small, "nested.h")
    path = small.directory / "include" / "nested.h"
    status = path.stat()
    path.write_text(path.read_text().replace("0.0f", "5.0f"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not header.is_unchanged(roots)


def test_headers_above_the_sources_are_named_by_their_way_from_there(tmp_path: Path, cache: Cache) -> None:
    small = make_small(tmp_path / "tree" / "op", cache)
    assert Roots.of(small.plan()).name(str(tmp_path / "tree" / "shared.h")) == ("source0", "../shared.h")
    packages = os.path.realpath(sysconfig.get_paths()["purelib"])
    of_app, of_package = Roots({"source0": "/opt/app/csrc"}), Roots({"source0": f"{packages}/ours/csrc"})
    assert of_app.name("/opt/app/common/x.h") == ("source0", "../common/x.h")
    assert of_app.name("/opt/other/include/x.h") == ("", "/opt/other/include/x.h")
    assert of_package.name(f"{packages}/ours/common/x.h") == ("source0", "../common/x.h")
    assert of_package.name(f"{packages}/theirs/x.h") == ("", f"{packages}/theirs/x.h")


def test_a_place_that_is_spelled_through_a_link_is_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    plan = BuildPlan("op", "op", Binding.STABLE, (), (tmp_path / "link",), (), (), ())
    assert Roots.of(plan).name(f"{tmp_path}/link/x.h") == ("include0", "x.h")
    assert Roots.of(plan).name(f"{tmp_path}/real/x.h") == ("include0", "x.h")


def test_a_header_of_the_system_that_was_saved_during_the_build_counts(small: SmallBuilder, tmp_path: Path) -> None:
    header = tmp_path / "system.h"
    header.touch()
    before_ns = time.time_ns()
    key = BuildKey(key_of(small), (), (), SystemHeaders.of([str(header)]))
    sources_untouched = small.plan()._replace(sources=())
    assert not saved_since(before_ns + 10**9, sources_untouched, key)
    header.write_text("// changed")
    os.utime(header, ns=(before_ns, before_ns))  # the file system's clock may be behind
    assert saved_since(before_ns, sources_untouched, key)


# Depfiles -----------------------------------------------------------------------------------

# Directory names as a user may have them, in the bytes of several encodings.
NAMES = [
    *(b"plain", b"two words", b"tab\there", b"a#b", b"a$b", b"a:b", b"a|b", b"a;b&c", b"a'b", b'a"b', b"a%b", b"a\\b"),
    *(b"a\x0bb", b"a\x0cb", b"a\rb", b"a\x1cb", b"a\x85b", b"a\\ b", b"(a)[b]{c}", b"~", b"*?", b"!a", b"-a", b"=a,b"),
    *(text.encode() for text in ("\u3000", "\u2028", "\u2029", "\u00a0", "\u0085", "é", "你好", "🙂", "e\u0301")),
    *("你好".encode("gbk"), "日本".encode("shift_jis"), "é".encode("latin-1"), b"\xff\xfe", b"\x81\\x", b"\x81|"),
    b"`$(a)`",
]


def written(name: bytes) -> bytes:
    """A name as GCC and clang write it into a depfile."""
    slashes, text = 0, b""
    for byte in (name[at : at + 1] for at in range(len(name))):
        if byte in b" \t":
            text += b"\\" * (slashes + 1)
        text += {b"$": b"$", b"#": b"\\"}.get(byte, b"") + byte
        slashes = slashes + 1 if byte == b"\\" else 0
    return text


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_may_have_any_name(name: bytes) -> None:
    path = b"/x/" + name + b"/v.h"
    depfile = b"0_a.o: a.cpp \\\n " + written(path) + b" \\\n /y/last.h\n\n/y/last.h:\n"
    assert parse_depfile(depfile) == ["a.cpp", os.fsdecode(path), "/y/last.h"]


def test_the_linker_may_escape_names_or_not() -> None:
    listed = parse_linked(b"op.so: \\\n  0_a.o \\\n  /my libs/x.a \\\n  /my\\ libs/y.a\n\n/my libs/x.a:\n")
    assert {"0_a.o", "/my libs/x.a", "/my libs/y.a"} <= set(listed)
