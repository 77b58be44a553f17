"""The precompiled torch/extension.h: made on request, used where it fits, and of no influence on the key."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from op_builder import env
from op_builder.build import main
from op_builder.cache.store import Cache, Entry
from op_builder.engine import precompiled
from op_builder.engine.build import BuildOptions
from op_builder.engine.commands import PRECOMPILED_DIRECTORY, build_commands
from op_builder.errors import ToolchainError
from tests.support.builds import compile_op, lookup
from tests.support.compilers import program
from tests.support.small_ops import TextBuilder

TEXT = """#include <torch/extension.h>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("value", [] { return 1; }); }
"""


def text_builder(cache: Cache, *flags: str, include_dirs: Sequence[str] = ()) -> TextBuilder:
    builder = TextBuilder("text", {"text.cpp": TEXT}, cache, include_dirs=include_dirs)
    builder.flags = list(flags)
    return builder


def offered(builder: TextBuilder, staging: Path) -> bool:
    plan, _, toolset = lookup(builder).to_build()
    staging.mkdir()
    return precompiled.offer(plan, toolset, builder.cache, staging)


@pytest.mark.parametrize(("flag", "same"), [("-O3", True), ("-Wall", True), ("-DX=1", True), ("-fopenmp", False)])
def test_only_flags_that_gcc_insists_on_ask_for_another_header(cache: Cache, flag: str, same: bool) -> None:
    plain, other = (precompiled.header_plan(text_builder(cache, *flags).plan()) for flags in ((), (flag,)))
    assert (plain == other) is same


def test_another_compiler_is_refused(cache: Cache, tmp_path: Path) -> None:
    answers = '*-dM*) echo "#define __clang__ 1";; *machine*) echo x;; *) echo clang 19;;'
    with env.scope(CXX=str(program(tmp_path / "clang++", f'case "$*" in {answers} esac'))):
        plan, _, toolset = lookup(text_builder(cache)).to_build()
        with pytest.raises(ToolchainError, match="is not GCC"):
            precompiled.precompile(plan, toolset, cache)


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """The precompiled header, made by the command."""
    root = tmp_path_factory.mktemp("precompiled")
    with env.scope(ACCEL_CACHE_DIR=str(root)):
        assert main(["--precompile"]) == 0
    (entry,) = Cache(root).entries(precompiled.OP)
    return entry


@pytest.mark.slow
def test_an_op_is_built_with_it_and_has_the_key_of_one_without(header: Entry, cache: Cache, tmp_path: Path) -> None:
    with_header = text_builder(Cache(header.directory.parents[4]))
    assert offered(with_header, tmp_path / "staging")
    plan, _, toolset = lookup(with_header).to_build()
    (step,) = build_commands(plan, toolset, tmp_path / "staging", precompiled=True).compile_steps
    (tmp_path / "staging" / "text.cpp").write_text(TEXT)
    command = [*step.command, "-Winvalid-pch", "-Werror", "-H"]
    done = subprocess.run(command, cwd=tmp_path / "staging", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"! {PRECOMPILED_DIRECTORY}/torch/extension.h.gch"), "GCC says which one it takes"
    reasons: list[str] = []
    built = compile_op(with_header, BuildOptions(force=True, on_start=reasons.extend))
    assert reasons == ["it was requested"]
    assert built.digest == compile_op(text_builder(cache)).digest


@pytest.mark.slow
def test_an_op_with_a_pybind11_of_its_own_is_compiled_without(header: Entry, tmp_path: Path) -> None:
    cache = Cache(header.directory.parents[4])
    (tmp_path / "include" / "common").mkdir(parents=True)
    assert offered(text_builder(cache, include_dirs=[str(tmp_path / "include")]), tmp_path / "one")
    (tmp_path / "include" / "pybind11").mkdir()
    assert not offered(text_builder(cache, include_dirs=[str(tmp_path / "include")]), tmp_path / "two")
