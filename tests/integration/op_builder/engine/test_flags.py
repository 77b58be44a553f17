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
        ["-Wl,--dependency-file={}"],
        ["-Xclang", "-dependency-file", "-Xclang", "{}"],
    ],
)
@pytest.mark.parametrize("kind", ["flags", "link", "CXX"])
def test_flags_that_name_outputs_are_refused(small: SmallBuilder, tmp_path: Path, flags: list[str], kind: str) -> None:
    words = [flag.format(tmp_path / "output") for flag in flags]
    compiler = None
    if kind == "CXX":
        compiler = " ".join([require_program("g++"), *words])
    else:
        getattr(small, kind).extend(words)
    with env.scope(CXX=compiler), pytest.raises(AccelError, match="names an output"):
        small.load()
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    "flag",
    ["--coverage", "-fprofile-generate", "-fstack-usage", "-save-temps", "-gsplit-dwarf", "-Wl,-Map=list"],
)
def test_flags_with_a_second_output_are_refused_each_time(small: SmallBuilder, flag: str) -> None:
    small.flags += [flag, "-g"]
    small.link = [flag]
    for _ in range(2):
        with pytest.raises(ToolchainError, match="only the binary"):
            compile_op(small)
    assert list((small.cache.home / "staging").iterdir()) == []


@pytest.mark.parametrize("kind", ["flags", "link", "CXX"])
@pytest.mark.parametrize(
    "flag",
    [
        *("-Wl,-Map={}", "-Wl,-Map,{}", "-Xlinker -Map -Xlinker {}", "-Wl,--out-implib={}", "-Wl,--reproduce={}"),
        *("-fopt-info-all={}", "-fdump-tree-all={}", "-ftime-trace={}", "-Wa,-a={}", "-aux-info {}"),
        "-Wl,-Map=../list",
    ],
)
def test_a_flag_with_the_name_of_a_new_file_is_refused_before_the_build(
    small: SmallBuilder, tmp_path: Path, flag: str, kind: str
) -> None:
    compiler = None
    if kind == "CXX":
        compiler = f"{require_program('g++')} {flag.format(tmp_path / 'list')}"
    else:
        getattr(small, kind).extend(flag.format(tmp_path / "list").split())
    with env.scope(CXX=compiler), pytest.raises(AccelError, match="only the binary"):
        small.load()
    assert not (tmp_path / "list").exists()


@pytest.mark.parametrize("flag", ["-Wl,-Map={}", "-Wl,-Map={}/list", "-fdump-tree-all={}/list", "-time={}/list"])
def test_a_flag_that_writes_over_a_file_or_into_a_directory_is_refused(
    small: SmallBuilder, tmp_path: Path, flag: str
) -> None:
    (tmp_path / "list").touch()
    small.flags.append(flag.format(tmp_path))
    small.link.append(small.flags[-1])
    with pytest.raises(ToolchainError, match="only the binary"):
        compile_op(small)


@pytest.mark.parametrize("flag", ["-Wl,-rpath,{}/new", "-Xlinker -rpath -Xlinker {}/new", "-L {}/new"])
def test_a_directory_that_the_build_does_not_read_may_be_missing(
    small: SmallBuilder, tmp_path: Path, flag: str
) -> None:
    small.link = flag.format(tmp_path).split()
    small.flags += [f"-ffile-prefix-map={tmp_path}/old={tmp_path}/new", f"-I{tmp_path}/new"]
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


def test_a_build_for_another_platform_does_not_get_the_variables_that_compilers_read(tmp_path: Path) -> None:
    script = program(tmp_path / "ninja", 'echo "[$CPATH]" >"$1"')
    for is_for_target in (False, True):
        with env.scope(CPATH="/usr/include"):
            run_ninja(
                *([str(script), str(tmp_path / "seen")], tmp_path, tmp_path / "log", threading.Event()),
                is_for_target=is_for_target,
            )
        assert (tmp_path / "seen").read_text() == ("[]\n" if is_for_target else "[/usr/include]\n")
