"""The precompiled torch/extension.h: which sources may begin with it, and that it changes nothing but time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from op_builder import OpBuilder, env
from op_builder.cache.fingerprint import BuildKey, PlanKey
from op_builder.cache.headers import parse_depfile
from op_builder.cache.store import Cache, Entry
from op_builder.engine import build as engine
from op_builder.engine import precompiled, torch_header
from op_builder.engine.first_include import opens_with_torch
from op_builder.engine.precompiled import header_plan
from op_builder.errors import CompileError
from op_builder.load.resolver import Request
from op_builder.plan import Binding, BuildPlan, Language, Source

TORCH = "#include <torch/extension.h>\n"


def source(text: str) -> Source:
    return Source(Path("op.cpp"), "op.cpp", Language.CXX, text=text)


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        (TORCH, True),
        ('#include "torch/extension.h"\n', True),
        ("// a comment\n/* and\n#define X\nanother */\n\n" + TORCH, True),
        ("#pragma once\n#ifndef OP_H\n#define OP_H\n" + TORCH + "#endif\n", True),
        ("#if !defined(OP_H)\n#define OP_H\n" + TORCH + "#endif\n", True),
        ("#include <vector>\n#include <cstdint>\n#include <math.h>\n#include <ATen/ATen.h>\n" + TORCH, True),
        ('#line 1 "cell"\n' + TORCH, True),
        ("#  include   <torch/extension.h>  // for Tensor\n", True),
        ("#define NDEBUG\n" + TORCH, False),
        ("#ifndef NDEBUG\n#define NDEBUG\n#endif\n" + TORCH, False),
        ("#ifndef OP_H\n#define OP_H 1\n" + TORCH, False),
        ("#ifndef WITHOUT_TORCH\n" + TORCH + "#endif\n", False),
        ("#if !defined(__linux__)\n" + TORCH + "#endif\n", False),
        ("#pragma GCC optimize(3)\n" + TORCH, False),
        ("#undef assert\n" + TORCH, False),
        ("int x;\n" + TORCH, False),
        ("#include <fmt/format.h>\n" + TORCH, False),
        ("#include MACRO\n" + TORCH, False),
        ('#include "nowhere_to_be_found.h"\n' + TORCH, False),
        ("#include <torch/library.h>\n", False),
        ("", False),
    ],
)
def test_a_source_may_begin_with_it_if_nothing_of_its_own_comes_before(text: str, opens: bool) -> None:
    assert opens_with_torch(source(text), []) is opens


def test_own_headers_are_followed(tmp_path: Path) -> None:
    include = tmp_path / "include"
    include.mkdir()
    (include / "good.h").write_text("#pragma once\n" + TORCH)
    (include / "bad.h").write_text("#define AT_PARALLEL_OPENMP 1\n" + TORCH)
    (include / "deep.h").write_text('#include "good.h"\n')
    (include / "empty.h").write_text("#pragma once\n")
    (tmp_path / "beside.h").write_text('#include "deep.h"\n')
    (tmp_path / "itself.h").write_text('#include "itself.h"\n')
    (include / "config").write_text("#define AT_PARALLEL_OPENMP 1\n")
    path = tmp_path / "op.cpp"
    path.write_text("#include <config>\n" + TORCH)
    assert not opens_with_torch(Source(path, "op.cpp", Language.CXX), [include])
    cases = {"good": True, "bad": False, "deep": True, "empty": False, "beside": True, "itself": False}
    for name, opens in cases.items():
        path.write_text(f'#include "{name}.h"\n')
        assert opens_with_torch(Source(path, "op.cpp", Language.CXX), [include]) is opens, name
    path.write_text('#include "empty.h"\n' + TORCH)
    assert opens_with_torch(Source(path, "op.cpp", Language.CXX), [include])


def plan_with(*flags: str) -> BuildPlan:
    return BuildPlan("op", "op", Binding.TORCH, (source(TORCH),), (), flags, (), ())


def test_ops_with_the_same_compiler_flags_share_it() -> None:
    plain = header_plan(plan_with("-std=c++20", "-O2"), TORCH)
    assert plain is not None
    for flags in (
        ["-DTORCH_EXTENSION_NAME=op"],
        ["-D", "VERSION=2"],
        ["-I/own/include"],
        ["-isystem", "/own"],
        ["-Wall", "-Wno-reorder", "-w"],
        ["-O3"],
        ["-O0", "-Og"],
    ):
        assert header_plan(plan_with("-std=c++20", "-O2", *flags), TORCH) == plain


def test_flags_that_the_compiler_insists_on_have_their_own() -> None:
    plain = header_plan(plan_with("-std=c++20", "-O2"), TORCH)
    for flags in (
        ["-fopenmp"],
        ["-march=haswell"],
        ["-g"],
        ["-O0"],
        ["-O3", "-Os"],
        ["-DNDEBUG"],
        ["-D", "AT_PARALLEL_OPENMP=1"],
    ):
        other = header_plan(plan_with("-std=c++20", "-O2", *flags), TORCH)
        assert other is not None
        assert other != plain


@pytest.mark.parametrize("flag", ["-include", "-imacros", "-Wp,-DX", "-include/own/config.h"])
def test_files_that_are_read_before_all_others_forbid_it(flag: str) -> None:
    assert header_plan(plan_with("-O3", flag, "config.h"), TORCH) is None


def test_an_own_header_that_torch_would_find_forbids_it(tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry" / "names.json").write_text(json.dumps(["torch", "pybind11", "vector"]))
    entry = Entry(tmp_path / "entry", None)  # type: ignore[arg-type]
    own = tmp_path / "include"
    (own / "common").mkdir(parents=True)
    assert not precompiled._shadowed(entry, [own, tmp_path / "missing"])
    (own / "pybind11").mkdir()
    assert precompiled._shadowed(entry, [own])


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("#include <torch/library.h>\n", {}),
        (TORCH, {"ACCEL_PRECOMPILE": "0"}),
        (TORCH, {"ACCEL_CACHE_MAX_MIB": "100"}),
    ],
    ids=["no use", "forbidden", "no room"],
)
def test_no_process_is_started(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, text: str, variables: dict[str, str]
) -> None:
    request = Request.of(TextBuilder(text, cache))
    assert request.toolset is not None

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("op_builder.engine.precompiled.subprocess.run", start)
    with env.scope(**{"ACCEL_PRECOMPILE": "1", **variables}):
        precompiled.make_in_background(request.plan, request.toolset, cache)


def test_it_is_not_made_where_memory_is_short(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.writable_dir("logs")
    assert precompiled._obstacle(cache) == ""
    monkeypatch.setattr(precompiled, "available_memory_bytes", lambda _: (3 << 30) - 1)
    assert precompiled._obstacle(cache) == "memory is short"


class TextBuilder(OpBuilder):
    NAME = "text"

    def __init__(self, text: str, cache: Cache, include_dirs: Sequence[str] = ()) -> None:
        super().__init__()
        self.text = text
        self.include_dirs = list(include_dirs)
        self.cache = cache  # type: ignore[misc]

    def sources(self) -> list[str]:
        return []

    def source_texts(self) -> dict[str, str]:
        return {"text.cpp": self.text}

    def include_paths(self) -> list[str]:
        return self.include_dirs


BOUND = TORCH + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("value", [] { return VALUE; }); }\n'


def wait_for_header(cache: Cache, timeout_s: float = 600) -> Entry:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        entries = cache.entries(precompiled.OP)
        if entries:
            return entries[0]
        time.sleep(0.5)
    raise AssertionError(f"no header after {timeout_s} s; {list((cache.root / 'logs').glob('*'))}")


def test_the_core_is_the_header_without_the_frontend() -> None:
    kept = torch_header.core().splitlines()
    assert "#include <torch/extension.h>" in kept
    assert {"#include <torch/autograd.h>", "#include <torch/fft.h>", "#include <torch/types.h>"} <= set(kept)
    left_out = ("data", "jit", "nn", "optim", "serialize")
    assert not {f"#include <torch/{name}.h>" for name in left_out}.intersection(kept)


@pytest.mark.parametrize("extension", ["", "#include <torch/all.h>\n"])
def test_a_torch_that_is_made_otherwise_gives_all_of_its_header(
    extension: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    include = tmp_path / "include" / "torch"
    include.mkdir(parents=True)
    if extension:
        (include / "extension.h").write_text(extension)
    install = torch_header.torch_install()._replace(root=tmp_path)
    monkeypatch.setattr(torch_header, "torch_install", lambda: install)
    assert torch_header.core.__wrapped__() == TORCH


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("torch::Tensor f(torch::Tensor x) { return x + x; }", False),
        ("float* data = x.data_ptr<float>(); annotate(data);", False),
        ("namespace F = torch::nn::functional;", True),
        ("torch::optim ::SGD sgd;", True),
        ("using namespace torch; nn::Linear layer(1, 2);", True),
        ("torch::save(x, name);", True),
        ("torch::jit::load(name);", True),
        ("#include <torch/torch.h>", True),
        ("#include <torch/nn/functional.h>", True),
        ("#include <torch/csrc/autograd/custom_function.h>", False),
    ],
)
def test_sources_that_plainly_use_the_frontend_begin_with_all_of_it(text: str, whole: bool) -> None:
    assert (torch_header.text_for([source(TORCH), source(text)], whole=False) == TORCH) is whole
    assert torch_header.text_for([source(text)], whole=True) == TORCH


@pytest.mark.parametrize(
    ("log", "again"),
    [
        ("op.cpp:3:8: error: 'Linear' is not a member of 'torch::nn'", True),
        ("op.cpp:3:8: error: 'optim' has not been declared", True),
        ("op.cpp:3:8: error: 'wdith' was not declared in this scope; did you mean 'width'?", False),
        ("op.cpp:3:8: warning: torch is fine\nop.cpp:4:1: error: expected ';' before '}' token", False),
    ],
)
def test_a_failure_that_names_none_of_it_is_final(log: str, again: bool) -> None:
    assert torch_header.may_miss_frontend(torch_header.core(), log) is again
    assert not torch_header.may_miss_frontend(TORCH, log)


@pytest.mark.slow
def test_an_op_whose_own_header_uses_the_frontend_is_compiled_with_all_of_it(
    cache: Cache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "layers.h").write_text(
        "#pragma once\ninline int64_t width() { return torch::nn::LinearOptions(2, 3).out_features(); }\n"
    )
    text = TORCH + '#include "layers.h"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("width", &width); }\n'
    builder = TextBuilder(text, cache, [str(tmp_path)])
    assert builder.load().width() == 3
    assert list((cache.root / "logs").glob("*")) == []
    assert "compiling again with all of its header" in caplog.text

    caplog.clear()
    with pytest.raises(CompileError, match="wdith"):
        TextBuilder(TORCH + "int64_t width() { return wdith; }\n", cache).load()
    assert "compiling again" not in caplog.text


@pytest.mark.slow
def test_the_second_op_begins_with_the_header_that_the_first_had_made(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = TextBuilder(BOUND.replace("VALUE", "1"), cache)
    assert first.load().value() == 1
    assert cache.entries(precompiled.OP) == []
    plain_key = Request.of(first).find_cached()
    with env.scope(ACCEL_PRECOMPILE="1"):
        request = Request.of(first)
        assert request.toolset is not None
        precompiled.make_in_background(request.plan, request.toolset, cache)
    header = wait_for_header(cache)
    assert header.manifest.kind == "header"

    # The same op built with it is the same op: the headers it names are those the compiler read before.
    from op_builder.engine.build import BuildOptions
    from op_builder.load.resolver import compile_now

    again = compile_now(Request.of(first), BuildOptions(force=True))
    assert plain_key is not None
    assert again.manifest.key.digest == plain_key.manifest.key.digest

    # GCC reads it and not the text, whose files it would otherwise list; also at another level of optimisation.
    monkeypatch.setattr(TextBuilder, "cxx_args", lambda _: ["-O3"])
    second = TextBuilder(BOUND.replace("VALUE", "2"), cache)
    read: list[str] = []
    build_key = engine.build_key

    def watched(
        key: PlanKey, plan: BuildPlan, depfiles: Iterable[Path], stamped: Iterable[str], linked: Path | None
    ) -> BuildKey:
        depfiles = list(depfiles)
        read.extend(name for depfile in depfiles for name in parse_depfile(depfile.read_text()))
        return build_key(key, plan, depfiles, stamped, linked)

    monkeypatch.setattr(engine, "build_key", watched)
    assert second.load().value() == 2
    assert "text.cpp" in read
    assert not [name for name in read if name.endswith("torch/extension.h")]

    # A failed command is told as it works where the staging directory is gone.
    with pytest.raises(CompileError, match="NOBODYS_NAME") as caught:
        TextBuilder(BOUND.replace("VALUE", "NOBODYS_NAME"), cache).load()
    assert "text.cpp" in caught.value.command
    assert precompiled.PRECOMPILED_HEADER not in caught.value.command
    assert precompiled.PRECOMPILED_HEADER in Path(caught.value.log_path).read_text()

    # A damaged header is noticed by its checksum, set aside, and the op is built without.
    artifact = header.artifact
    artifact.write_bytes(artifact.read_bytes()[: 1 << 20])
    third = TextBuilder(BOUND.replace("VALUE", "3"), cache)
    assert third.load().value() == 3
    assert cache.entries(precompiled.OP) == []
