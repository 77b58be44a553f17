"""Flags that concern the outputs of compilers: lists of headers, second files, the stack; and very long commands."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from op_builder import env
from op_builder.engine.build import BuildOptions
from op_builder.engine.ninja import run_ninja
from op_builder.errors import AccelError, CompileError, ToolchainError
from op_builder.toolchains.compiler_probe import searched_directories
from op_builder.toolchains.probes import failure_of
from tests.support.builds import compile_op, find_cached
from tests.support.compilers import needs_gxx, program, require_program
from tests.support.small_ops import ENTRY, SmallBuilder

pytestmark = needs_gxx


@pytest.mark.parametrize(
    "flags",
    [
        ["-MMD"],
        ["-MP", "-MF", "/nowhere/x.d"],
        ["-M"],
        ["--write-user-dependencies"],
        ["-DX", "-MT", "target", "-MMD"],
        [],
    ],
)
def test_the_users_flags_for_lists_of_headers_hide_no_header(
    small: SmallBuilder, tmp_path: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "system.h").write_text("")
    (small.directory / "small.cpp").write_text(f"#include <system.h>\n{ENTRY}")
    small.flags += [*flags, "-isystem", str(tmp_path)]
    with env.scope(DEPENDENCIES_OUTPUT="list.d", SUNPRO_DEPENDENCIES="list.d"):
        compile_op(small)
    assert not (tmp_path / "list.d").exists(), "a compiler that is only asked wrote into the current directory"
    assert find_cached(small) is not None
    (tmp_path / "system.h").write_text("#define CHANGED 1\n")
    assert find_cached(small) is None


@pytest.mark.parametrize(
    "flags",
    [
        ["-o", "{}"],
        ["-o{}"],
        ["--output={}"],
        ["-Wl,-o,{}"],
        ["-Wl,--output={}"],
        ["-Xlinker", "-o", "-Xlinker", "{}"],
        ["-Wp,-MMD,{}"],
        ["-Wl,--dependency-fil={}"],
        ["-Wl,--outpu={}"],
        ["-Wl,--out-implib,{}"],
        ["-Wl,@{}.rsp"],
        ["-Xlinker", "@{}.rsp"],
        ["-Xclang", "-dependency-file", "-Xclang", "{}"],
    ],
)
@pytest.mark.parametrize("kind", ["flags", "link", "CXX"])
def test_flags_that_name_outputs_are_refused(small: SmallBuilder, tmp_path: Path, flags: list[str], kind: str) -> None:
    words = [flag.format(tmp_path / "output") for flag in flags]
    (tmp_path / "output.rsp").write_text(f"-o {tmp_path}/output")
    compiler = None
    if kind == "CXX":
        compiler = " ".join([require_program("g++"), *words])
    else:
        getattr(small, kind).extend(words)
    with env.scope(CXX=compiler), pytest.raises(AccelError, match="names an output"):
        small.load()
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    "flag", ["--coverage", "-fprofile-generate", "-fstack-usage", "-save-temps", "-gsplit-dwarf", "-Wl,-Map=list"]
)
def test_flags_with_a_second_output_are_refused_each_time(small: SmallBuilder, flag: str) -> None:
    small.flags += [flag, "-g"]
    small.link = [flag]
    for _ in range(2):
        with pytest.raises(ToolchainError, match="only the binary"):
            compile_op(small)
    assert list((small.cache.home / "staging").iterdir()) == []


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        *[("link", flag) for flag in ("-Wl,-Map={}", "-Wl,-Map,{}", "-Xlinker -Map -Xlinker {}", "-Wl,-Map=./../list")],
        *[("flags", flag) for flag in ("-fdump-tree-all={}", "-Wa,-a={}", "-aux-info {}", "-time={}")],
        ("CXX", "-Wl,-Map={}"),
    ],
)
def test_a_flag_that_writes_a_file_outside_is_refused(
    small: SmallBuilder, tmp_path: Path, kind: str, flag: str, exists: bool
) -> None:
    if exists:
        (tmp_path / "list").touch()
    words = flag.format(tmp_path / "list").split()
    if kind != "CXX":
        getattr(small, kind).extend(words)
    compiler = " ".join([require_program("g++"), *words]) if kind == "CXX" else None
    with env.scope(CXX=compiler), pytest.raises(ToolchainError, match="only the binary"):
        compile_op(small)


@pytest.mark.parametrize(
    "flag",
    [
        *("-Wl,-rpath,{}/new", "-Xlinker -rpath -Xlinker {}/new", "-L {}/new", "-Wl,-R,{}/new", "-Wl,-h,{}/new.so"),
        *("-Wl,--library-path={}", "-Wl,--library-path={}/new", "-Wl,--exclude-libs,{}/new.a", "-Wl,-R,/tmp:./:.."),
    ],
)
def test_a_link_flag_may_name_what_the_build_does_not_write(small: SmallBuilder, tmp_path: Path, flag: str) -> None:
    small.link = flag.format(tmp_path).split()
    compile_op(small)


def test_a_flag_may_name_what_the_build_does_not_write(small: SmallBuilder, tmp_path: Path) -> None:
    new = tmp_path / "new"
    small.flags += [f"-ffile-prefix-map={tmp_path}/old={new}", f"-I{new}", f"-Wp,-DPLACE={new}", "--sysroot=/"]
    small.flags += [f"-frandom-seed={new}.o", "--define-macro", f"ALSO={new}", "-isystem", str(new)]
    compile_op(small)


@pytest.mark.parametrize("saves", [1, 2])
def test_a_file_that_a_flag_names_may_be_saved_during_builds(small: SmallBuilder, tmp_path: Path, saves: int) -> None:
    script = tmp_path / "versions"
    script.write_text("{ global: *; };")
    small.link = [f"-Wl,--version-script={script}"]
    links = []

    def save(_done: int, _total: int, step: str) -> None:
        if step.startswith("link small"):
            links.append(step)
            if len(links) <= saves:
                script.touch()

    compile_op(small, BuildOptions(progress=save))
    assert len(links) == saves + 1
    assert find_cached(small) is not None


def test_a_file_that_a_flag_names_may_have_a_time_in_the_future(small: SmallBuilder, tmp_path: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("{ global: *; };")
    os.utime(script, (2**32, 2**32))  # the clock of a file server may be ahead
    small.link = [f"-Wl,--version-script={script}"]
    compile_op(small)
    assert find_cached(small) is not None


def test_debug_information_and_link_time_optimization_have_no_second_output(small: SmallBuilder) -> None:
    small.flags += ["-g", "-flto"]
    compile_op(small)


@pytest.mark.parametrize("suffix", [".s", ".S"])
def test_an_assembler_source_without_a_note_does_not_make_the_stack_executable(
    small: SmallBuilder, suffix: str
) -> None:
    small.files.append(f"part{suffix}")
    (small.directory / small.files[-1]).write_text(".globl part\npart: ret\n")
    entry = compile_op(small)
    headers = subprocess.run(
        ["readelf", "-lW", entry.artifact], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    (stack,) = (line for line in headers if "GNU_STACK" in line)
    assert "RWE" not in stack


def test_a_command_that_linux_does_not_run_is_refused(small: SmallBuilder) -> None:
    small.flags += [f"-DSETTING={'x' * 140_000}"]
    with pytest.raises(ToolchainError, match=r"compile small\.cpp is longer"):
        compile_op(small)


def test_the_first_error_has_no_colours(small: SmallBuilder) -> None:
    (small.directory / "small.cpp").write_text("#error on purpose\n")
    small.flags += ["-fdiagnostics-color=always", "-fdiagnostics-urls=always"]
    with env.scope(CLICOLOR_FORCE="1"), pytest.raises(CompileError) as caught:
        compile_op(small)
    assert caught.value.diagnostic.endswith("small.cpp:1:2: error: #error on purpose")


@pytest.mark.parametrize(
    ("name", "language"), [("CPATH", "c++"), ("CPLUS_INCLUDE_PATH", "c++"), ("C_INCLUDE_PATH", "c")]
)
def test_headers_of_this_machine_are_not_found_for_another_platform(tmp_path: Path, name: str, language: str) -> None:
    (tmp_path / "leaked.h").touch()
    probe = ["g++", "-x", language, "-c", "probe", "-o", "probe.o"]
    with env.scope(**{name: str(tmp_path)}):
        failures = [
            failure_of(probe, {"probe": "#include <leaked.h>\n"}, is_for_target=is_for) for is_for in (False, True)
        ]
        searched = [searched_directories(("g++",), language, is_for, ((name, ""),)) for is_for in (False, True)]
    assert failures[0] == ""
    assert "leaked.h: No such file" in failures[1]
    assert [str(tmp_path) in directories for directories in searched] == [True, False]


def test_a_build_for_another_platform_does_not_get_the_variables_that_compilers_read(tmp_path: Path) -> None:
    script = program(tmp_path / "ninja", 'echo "[$CPATH]" >"$1"')
    for is_for_target in (False, True):
        with env.scope(CPATH="/usr/include"):
            run_ninja(
                *([str(script), str(tmp_path / "seen")], tmp_path, tmp_path / "log", threading.Event()),
                is_for_target=is_for_target,
            )
        assert (tmp_path / "seen").read_text() == ("[]\n" if is_for_target else "[/usr/include]\n")
