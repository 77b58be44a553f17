from __future__ import annotations

import logging
from pathlib import Path

import pytest

from op_builder.errors import AccelError
from op_builder.plan import Binding
from op_builder.recipe import Recipe, normalized
from op_builder.toolchains.flags import (
    check_words,
    checked_flags,
    expand_response_files,
    host_words,
    indirect_flags,
    linked_libraries,
    named_files,
    names_in,
    without_older_standards,
)


def test_response_files_are_replaced_by_their_words(tmp_path: Path) -> None:
    (tmp_path / "inner").write_text("-DINNER")
    (tmp_path / "outer").write_text(f'-O1 \'-DA=b c\' "-DQ=\\"x\\""\n@{tmp_path}/inner\t-DB\\ C')
    words = ["-O1", "-DA=b c", '-DQ="x"', "-DINNER", "-DB C"]
    assert expand_response_files(["-g", f"@{tmp_path}/outer", "-last"]) == ["-g", *words, "-last"]
    (tmp_path / "linked").write_text(f"-z @{tmp_path}/inner @{tmp_path}/linked")
    linked = ["-one", "-z", "-DINNER", f"@{tmp_path}/linked", "-two"]
    expanded = expand_response_files([f"-Wl,-one,@{tmp_path}/linked,-two"])
    assert expanded == [word for piece in linked for word in ("-Xlinker", piece)]
    assert expand_response_files(["--options-file", f"{tmp_path}/inner", f"-optf={tmp_path}/inner"]) == ["-DINNER"] * 2
    assert expand_response_files(["@/missing"]) == ["@/missing"]


def test_a_relative_response_file_is_refused() -> None:
    with pytest.raises(AccelError, match="relative path"):
        expand_response_files(["@flags.rsp"])


@pytest.mark.parametrize("form", ["-specs={}", "-fplugin={}", "-T{}", "-Wl,--script,{}", "-Wl,@{}", "-Wa,@{}", "{}"])
def test_a_file_that_a_flag_names_is_found(tmp_path: Path, form: str) -> None:
    file = tmp_path / "named.so"
    file.touch()
    assert named_files([form.format(file)]) == [str(file)]
    assert named_files(["-D", f"X={file}", f"-DY={file}", f"-I{tmp_path}"]) == []


@pytest.mark.parametrize("form", ["@{}", "-Wl,@{}", "-Xcompiler=@{}", "-specs={}", "--config={}", "-fprofile-use={}"])
def test_a_flag_that_names_a_list_or_directory_of_inputs_is_found(tmp_path: Path, form: str) -> None:
    assert indirect_flags(["-O2", form.format(tmp_path), f"-DX=@{tmp_path}"]) == [form.format(tmp_path)]
    assert indirect_flags(["-fplugin=name"]) == ["-fplugin=name"]


@pytest.mark.parametrize("word", ["/a\nb", "-DX=\0"])
def test_a_word_that_ninja_cannot_express_is_refused(word: str) -> None:
    with pytest.raises(AccelError, match="line break"):
        check_words(["-O2", word])


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        (["-std=c++17", "-O3"], ["-O3"]),
        (["-std=gnu++1z", "-std=c++11"], []),
        (["-std=c++20"], ["-std=c++20"]),
        (["-std=c++2b", "-DA"], ["-std=c++2b", "-DA"]),
        (["-std=c11"], ["-std=c11"]),
        (["-ansi", "-DA"], ["-DA"]),
    ],
)
def test_only_older_standards_are_removed(flags: list[str], kept: list[str]) -> None:
    assert without_older_standards("acme", "-std=c++20", flags) == kept


def test_an_older_standard_in_a_response_file_does_not_win(tmp_path: Path) -> None:
    (tmp_path / "flags.rsp").write_text("-std=c++14 -DA")
    recipe = Recipe("acme", Binding.TORCH, (), {"a.cpp": "int x;"}, cxx_flags=(f"@{tmp_path / 'flags.rsp'}",))
    flags = normalized(recipe).cxx_flags
    assert "-DA" in flags
    assert "-std=c++14" not in flags


def test_each_removed_standard_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "op_builder"):
        for _ in range(3):
            without_older_standards("acme_once", "-std=c++20", ["-std=c++14"])
    (record,) = caplog.records
    assert "-std=c++20 instead of -std=c++14" in record.getMessage()


@pytest.mark.parametrize(
    "flag",
    [
        *("-march=native", "-Wa,-mtune=generic", "-Wl,-z,max-page-size=4096", "-fopt-info", "-DX=-Map", "-Wa,-al"),
        *("-ffile-prefix-map=/a=/b", "-Wl,--as-needed", "-fdump-record-layouts", "-ftime-report"),
        *("-mapx-features=egpr", "--sysroot=/opt/dependencies"),
    ],
)
def test_a_flag_without_an_output_is_kept(flag: str) -> None:
    assert checked_flags([flag]) == [flag]


def test_flags_that_nvcc_passes_on_are_words_of_their_own() -> None:
    forms = ["-Xcompiler", "-B", "-Xcompiler=/a", "--compiler-options=-wrapper,b", "-O3", "-Xcompiler='-DX=1'"]
    assert host_words(forms) == ["-B", "/a", "-wrapper", "b", "-O3", "'-DX=1'"]


def test_a_library_is_found_in_every_form_of_the_flag() -> None:
    forms = ["-lz", "-l", "z", "-Wl,-l,z", "-Wl,--library=z", "-Xlinker", "-l", "-Xlinker", "z", "--library", "z"]
    assert linked_libraries([*forms, "-L/x", "/x/libz.so.1"]) == ["-lz"] * 6 + ["/x/libz.so.1"]


def test_the_programs_and_directories_that_flags_name() -> None:
    assert names_in(["-B/a,b=c", "-B", "/d=e"]) == ["/a,b=c", "/d=e"]
    assert names_in(["-wrapper", "timed,-v"]) == ["timed", "ld.timed"]
    assert names_in(["-fuse-ld=gold", "--gcc-toolchain=/f=g"]) == ["gold", "/f=g", "ld.gold"]


@pytest.mark.parametrize("flag", ["-D", "-include", "-isystem", "-x", "-Xlinker", "-B", "-l", "-L", "-T", "-z"])
def test_a_flag_without_its_value_is_refused_at_the_end(flag: str) -> None:
    """The compiler would take the engine's next flag for its value."""
    with pytest.raises(AccelError, match=f"The flag '{flag}' lacks its value"):
        checked_flags(["-O2", flag])
    assert checked_flags([flag, "value", "-O2"]) == [flag, "value", "-O2"]
    assert checked_flags(["-Xlinker", "-z", "-Xlinker", "now"])[-1] == "now"
