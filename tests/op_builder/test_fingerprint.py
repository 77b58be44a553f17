"""Keys change with everything that can change the binary, and with nothing else."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.fingerprint import PlanKey, plan_key
from op_builder.cache.headers import Header, Roots, parse_depfile
from op_builder.cache.store import Cache
from op_builder.plan import Binding, BuildPlan
from op_builder.system.file_contents import file_sha256, settled_status
from op_builder.toolchains.compiler import Compiler
from op_builder.toolchains.toolset import Toolset
from tests.support.small_ops import SmallBuilder, make_small

TOOLSET = Toolset(Compiler(("g++",), "/usr/bin/g++-12", "g++ 12.2.0", "x86_64-linux-gnu", is_gcc=True))


def key_of(builder: SmallBuilder, toolset: Toolset | None = TOOLSET) -> PlanKey:
    return plan_key(builder.plan(), toolset, builder.cache.memo)


def edit_source(builder: SmallBuilder) -> None:
    path = builder.directory / "small.cpp"
    path.write_text(path.read_text() + "\n")


def add_source(builder: SmallBuilder) -> None:
    (builder.directory / "more.cpp").write_text("")
    builder.files.append("more.cpp")


def add_flag(builder: SmallBuilder) -> None:
    builder.flags.append("-DMORE")


def add_link_flag(builder: SmallBuilder) -> None:
    builder.link.append("-lm")


def change_binding(builder: SmallBuilder) -> None:
    type(builder).BINDING = Binding.TORCH


@pytest.mark.parametrize("mutate", [edit_source, add_source, add_flag, add_link_flag, change_binding])
def test_what_can_change_the_binary_changes_the_key(
    small: SmallBuilder, mutate: Callable[[SmallBuilder], None]
) -> None:
    before = key_of(small)
    try:
        mutate(small)
        assert key_of(small).digest != before.digest
    finally:
        type(small).BINDING = Binding.STABLE


@pytest.mark.parametrize("field", ["path", "version", "target"])
def test_another_compiler_changes_the_key(small: SmallBuilder, field: str) -> None:
    other = Toolset(TOOLSET.cxx._replace(**{field: "other"}))
    assert key_of(small, other).digest != key_of(small).digest


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
def test_headers_of_gccs_library_count_by_content_where_clang_takes_them(small: SmallBuilder) -> None:
    with env.scope(CXX="clang++"):
        small.jit_load()
    (entry,) = small.cache.entries()
    of_library = {name for name in entry.manifest.system_headers.paths if "/c++/" in name}
    assert any(name.endswith("/cstdint") for name in of_library)
    assert not any("/clang/" in name for name in entry.manifest.system_headers.paths), "its version stands for those"


def test_torchs_headers_as_a_whole_count_where_the_binding_is_torchs_own(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [small.plan(), small.plan()._replace(binding=Binding.TORCH)]
    stable, torch = [plan_key(plan, TOOLSET, small.cache.memo).digest for plan in plans]
    monkeypatch.setattr("op_builder.cache.fingerprint.header_stamp", lambda *_: "2.99.0")
    assert plan_key(plans[0], TOOLSET, small.cache.memo).digest == stable
    assert plan_key(plans[1], TOOLSET, small.cache.memo).digest != torch


def test_python_and_cxx_abi_count_only_where_the_binding_needs_them(small: SmallBuilder) -> None:
    plan = small.plan()
    stable = plan_key(plan, TOOLSET, small.cache.memo).parts
    torch = plan_key(plan._replace(binding=Binding.TORCH), TOOLSET, small.cache.memo).parts
    assert {"python abi", "torch c++ abi"} & set(stable) == set()
    assert {"python abi", "torch c++ abi"} <= set(torch)


def test_native_flags_bring_the_cpu_into_the_key(small: SmallBuilder) -> None:
    assert "cpu" not in key_of(small).parts
    small.flags.append("-march=native")
    assert "cpu" in key_of(small).parts


def test_touch_changes_nothing(small: SmallBuilder) -> None:
    before = key_of(small)
    os.utime(small.directory / "small.cpp", (1, 1))
    assert key_of(small).digest == before.digest


def test_a_moved_directory_changes_nothing(small: SmallBuilder, tmp_path: Path, cache: Cache) -> None:
    before = key_of(small)
    shutil.copytree(small.directory, tmp_path / "elsewhere" / "deep")
    assert key_of(SmallBuilder(tmp_path / "elsewhere" / "deep", cache)).digest == before.digest


def header_of(builder: SmallBuilder, name: str) -> tuple[Header, Roots]:
    roots = Roots.of(builder.plan())
    path = str(builder.directory / "include" / name)
    root, relative = roots.name(os.path.realpath(path))
    return Header(root, relative, file_sha256(path), settled_status(path), roots.earlier(root, relative)), roots


def test_header_is_named_by_the_place_it_was_found_in(small: SmallBuilder) -> None:
    header, _ = header_of(small, "nested.h")
    assert (header.root, header.path) == ("include1", "nested.h")


def test_header_with_other_times_but_the_same_content_is_unchanged(small: SmallBuilder) -> None:
    header, roots = header_of(small, "nested.h")
    os.utime(small.directory / "include" / "nested.h", (1, 1))
    assert header.is_unchanged(roots)


def test_edited_header_is_changed_even_at_the_same_size_and_time(small: SmallBuilder) -> None:
    path = small.directory / "include" / "nested.h"
    header, roots = header_of(small, "nested.h")
    status = path.stat()
    path.write_text(path.read_text().replace("0.0f", "5.0f"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not header.is_unchanged(roots)


def test_removed_header_is_changed(small: SmallBuilder) -> None:
    header, roots = header_of(small, "nested.h")
    (small.directory / "include" / "nested.h").unlink()
    assert not header.is_unchanged(roots)


def test_a_new_file_that_comes_first_in_the_search_order_is_a_change(small: SmallBuilder) -> None:
    header, roots = header_of(small, "nested.h")
    assert header.is_unchanged(roots)
    (small.directory / "nested.h").write_text("#define NESTED 9.0f\n")  # beside the source: found before -I
    assert not header.is_unchanged(roots)


def test_a_place_this_plan_does_not_have_is_a_change(small: SmallBuilder) -> None:
    header, roots = header_of(small, "nested.h")
    assert not header._replace(root="include7").is_unchanged(roots)


def test_header_of_a_moved_tree_is_unchanged(small: SmallBuilder, tmp_path: Path, cache: Cache) -> None:
    header, _ = header_of(small, "nested.h")
    shutil.copytree(small.directory, tmp_path / "moved")
    moved: BuildPlan = SmallBuilder(tmp_path / "moved", cache).plan()
    assert header.is_unchanged(Roots.of(moved))


def test_headers_above_the_sources_are_named_relative_to_them(tmp_path: Path, cache: Cache) -> None:
    small = make_small(tmp_path / "tree" / "op", cache)
    shared = tmp_path / "tree" / "shared.h"
    shared.write_text("")
    assert Roots.of(small.plan()).name(str(shared)) == ("source0", "../shared.h")


def test_depfile_with_spaces_continuations_and_several_rules() -> None:
    text = "a.o: a.cpp \\\n /x/b.h \\\n /with\\ space/c.h\n\n/x/b.h:\n"
    assert parse_depfile(text) == ["a.cpp", "/x/b.h", "/with space/c.h"]


def test_headers_above_the_sources_are_named_by_their_way_from_there() -> None:
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
