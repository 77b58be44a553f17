"""Which toolchain a SYCL op is compiled with, and what icpx and IPEX are told, by a stand-in for the compiler."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_in_icpx import OF_PYTHON
from sycl_ops import PLAIN_BINDING, PLAIN_KERNEL, ScaleBuilder, needs_runtime, write_scale

from op_builder import env
from op_builder.builder.recipe import make_plan
from op_builder.cache.store import Cache
from op_builder.engine.commands import build_commands
from op_builder.errors import EnvironmentValueError, LoadError, SourceNotFoundError, ToolchainError
from op_builder.load.resolver import Request
from op_builder.plan import Language, Source
from op_builder.system.process import run
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.sycl import Accepted, SyclFacts, SyclToolchain, candidates, choose, gather_facts
from op_builder.toolchains.sycl_runtime import SyclRuntime, find_runtime, import_ipex
from op_builder.toolchains.sycl_texts import collect_texts
from op_builder.toolchains.toolset import find_toolset

RUNTIME = SyclRuntime(Path("/p"), "9.0.0 (20260930)", 9, Path("/p/lib/libsycl-jit.so"), None)
XPU = SyclFacts("20250302", "/oneapi/icpx", False, RUNTIME, has_kernel_texts=True, ahead_runtime=RUNTIME)
PLAIN = SyclFacts(None, None, False, RUNTIME, has_kernel_texts=True)


@pytest.mark.parametrize(
    ("facts", "chosen", "words"),
    [
        (XPU, "icpx", "torch for XPU 20250302"),
        (replace(XPU, icpx=None), "sycl-rtc", "libsycl 9.0.0"),
        (replace(XPU, has_ipex=True), "icpx", "torch for XPU"),
        (replace(XPU, asked="sycl-rtc"), "sycl-rtc", "libsycl 9.0.0"),
        (
            replace(PLAIN, icpx="/oneapi/icpx", has_ipex=True, ahead_runtime=RUNTIME),
            "ipex",
            "intel_extension_for_pytorch",
        ),
        (PLAIN, "sycl-rtc", "libsycl 9.0.0"),
        (replace(PLAIN, icpx="/oneapi/icpx"), "sycl-rtc", "libsycl 9.0.0"),
    ],
)
def test_the_first_toolchain_that_works_is_chosen(facts: SyclFacts, chosen: str, words: str) -> None:
    found = choose(facts)
    assert isinstance(found, Accepted)
    assert (found.toolchain.value, words in found.detail) == (chosen, True)


@pytest.mark.parametrize(
    ("facts", "nearest", "reason", "remedy"),
    [
        (replace(PLAIN, runtime=None), "sycl-rtc", "no SYCL runtime", "pip install 'accel-ops[sycl]'"),
        (replace(PLAIN, runtime=replace(RUNTIME, kernel_compiler=None)), "sycl-rtc", "libsycl-jit.so", "pip install"),
        (replace(PLAIN, has_kernel_texts=False), "icpx", "torch is no XPU build", "Install a torch for XPU"),
        (replace(XPU, icpx=None, has_kernel_texts=False), "icpx", "icpx is not on PATH", "setvars.sh"),
        (
            replace(XPU, ahead_runtime=None, asked="icpx"),
            "icpx",
            "neither /oneapi/icpx's own installation",
            "setvars.sh",
        ),
        (replace(PLAIN, asked="icpx"), "icpx", "torch is no XPU build", "Install a torch for XPU"),
        (replace(XPU, asked="ipex"), "ipex", "intel_extension_for_pytorch is not installed", "Install it"),
    ],
)
def test_without_one_the_reason_and_the_remedy_are_those_of_the_nearest(
    facts: SyclFacts, nearest: str, reason: str, remedy: str
) -> None:
    found = choose(facts)
    assert not isinstance(found, Accepted)
    assert found.toolchain.value == nearest
    assert reason in found.reason
    assert remedy in found.remedy


def test_every_rejection_has_a_reason_and_a_remedy() -> None:
    facts = replace(PLAIN, runtime=None, has_kernel_texts=False)
    found = [candidate for candidate in candidates(facts) if not isinstance(candidate, Accepted)]
    assert [candidate.toolchain for candidate in found] == list(SyclToolchain)
    assert all(candidate.reason and candidate.remedy for candidate in found)


def test_an_unknown_toolchain_is_refused() -> None:
    with (
        env.scope(ACCEL_SYCL_TOOLCHAIN="gcc"),
        pytest.raises(EnvironmentValueError, match=r"one of icpx, ipex, sycl-rtc"),
    ):
        gather_facts(has_kernel_texts=True)


def test_kernel_texts_bring_the_headers_they_include_and_no_place_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "kernels" / "a.hpp").write_text(
        '#include "beside.h"\n#include "deep.h"\n#include <sycl/half_type.hpp>\n'
    )
    (tmp_path / "kernels" / "beside.h").write_text('#include "missing.h"\n// ends a literal: )accel"\n')
    (tmp_path / "shared" / "deep.h").write_text("#pragma once\n")
    texts = collect_texts([tmp_path / "kernels" / "a.hpp"], [tmp_path / "shared"], ["-O1"], SyclFacts)
    assert list(texts.files) == ["include0/a.hpp", "include0/beside.h", "include1/deep.h"]
    assert texts.own_count == 1
    assert texts.options == ("-I/accel_ops_kernels/include1", "-O1")
    source = texts.as_source()
    assert str(tmp_path) not in source
    assert 'R"accel_(' in source


def test_kernel_texts_are_named_alike_in_a_checkout_and_beside_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    for package in ("theirs", "op_builder/_native/csrc", "op_builder/_native/kernels_sycl/host"):
        (site / package).mkdir(parents=True)
    (site / "theirs" / "__init__.py").touch()
    (site / "theirs" / "a.hpp").write_text('#include "host/kernel.h"\n')
    (site / "theirs" / "builders.py").write_text("class Builder: pass\n")
    (site / "op_builder" / "_native" / "kernels_sycl" / "host" / "kernel.h").touch()
    monkeypatch.syspath_prepend(str(site))
    native = site / "op_builder" / "_native"
    monkeypatch.setattr("op_builder.paths.native_root", lambda: native)
    owner = importlib.import_module("theirs.builders").Builder
    texts = collect_texts([site / "theirs" / "a.hpp"], [native / "kernels_sycl", native / "csrc"], [], owner)
    assert list(texts.files) == ["theirs/a.hpp", "kernels_sycl/host/kernel.h"]
    assert texts.options == ("-I/accel_ops_kernels/kernels_sycl", "-I/accel_ops_kernels/csrc")


def write_texts(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_headers_of_one_name_in_several_directories_stay_apart(tmp_path: Path) -> None:
    kernel = '#include "config.h"\n#include "of_b.h"\n'
    texts = {"k/k.hpp": kernel, "a/include/config.h": "// a\n", "b/include/config.h": "// b\n"}
    write_texts(tmp_path, {**texts, "b/include/of_b.h": '#include "config.h"\n'})
    places = [tmp_path / "a/include", tmp_path / "b/include"]
    found = collect_texts([tmp_path / "k/k.hpp"], places, [], SyclFacts)
    assert found.files["include1/config.h"] == "// a\n"
    assert found.files["include2/config.h"] == "// b\n"
    assert found.options == ("-I/accel_ops_kernels/include1", "-I/accel_ops_kernels/include2")


def test_a_header_that_two_ways_lead_to_is_one_text(tmp_path: Path) -> None:
    # Two names would be two files to the compiler, and "#pragma once" in vain.
    kernel = '#include "deep/x.h"\n#include "x.h"\n#include "../top/deep/x.h"\n'
    write_texts(tmp_path, {"top/k.hpp": kernel, "top/deep/x.h": "#pragma once\n"})
    found = collect_texts([tmp_path / "top/k.hpp"], [tmp_path / "top/deep"], [], SyclFacts)
    assert list(found.files) == ["include0/k.hpp", "include0/deep/x.h"]
    assert found.options == ("-I/accel_ops_kernels/include0/deep",)


def test_a_text_that_no_name_would_find_and_a_name_for_two_texts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path, {"k/k.hpp": '#include "../other/x.h"\n', "other/x.h": ""})
    with pytest.raises(SourceNotFoundError, match=r"other/x\.h lies outside"):
        collect_texts([tmp_path / "k/k.hpp"], [], [], SyclFacts)
    write_texts(tmp_path, {"own/include0/x.h": "// own\n", "own/k.hpp": '#include "include0/x.h"\n#include "y.h"\n'})
    write_texts(tmp_path, {"far/y.h": '#include "x.h"\n', "far/x.h": "// far\n"})
    monkeypatch.setattr("op_builder.paths.outermost_bases", lambda _owner: [tmp_path / "own"])
    with pytest.raises(SourceNotFoundError, match=r"would both be named 'include0/x\.h'"):
        collect_texts([tmp_path / "own/k.hpp"], [tmp_path / "far"], [], SyclFacts)


@pytest.fixture
def icpx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch for XPU as far as its commands go, with the stand-in on PATH; the file that logs its calls."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "icpx"
    stand_in = Path(__file__).with_name("stand_in_icpx.py")
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(stand_in))} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    # What an XPU build of torch has besides, empty: nothing of it is called here.
    for name in ("torch_xpu", "c10_xpu"):
        done = run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(directory / f"lib{name}.so")])
        assert done.ok, done.errors
    log = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{directory}:{env.child_environment()['PATH']}")
    monkeypatch.setenv("LIBRARY_PATH", str(directory))
    monkeypatch.setenv("STAND_IN_LOG", str(log))
    monkeypatch.setenv("TORCH_XPU_ARCH_LIST", "pvc,bmg")
    for module in ("toolchains.sycl", "engine.commands"):
        install = torch_install()._replace(xpu="20260200")
        monkeypatch.setattr(f"op_builder.{module}.torch_install", lambda install=install: install)
    return log


def calls(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@needs_runtime
def test_icpx_compiles_the_plan_as_torch_does_and_the_host_side_builds(tmp_path: Path, icpx: Path) -> None:
    write_scale(tmp_path / "op")
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    request = Request.of(builder)
    assert request.toolset is not None
    assert {source.language for source in request.plan.sources} == {Language.SYCL}
    commands = build_commands(request.plan, request.toolset)
    for step in commands.compile_steps:
        done = subprocess.run(step.command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / step.object_name).exists()
        # The kernels' texts are read before the binding, so an edited one is noticed.
        assert ("factor.h" in (tmp_path / step.depfile).read_text()) is (step.source.path.name == "binding.cpp")
    device = subprocess.run(commands.device_link, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert device.returncode == 0, device.stderr
    link = ["-fsycl", "-fsycl-link", "--offload-compress", "-fsycl-targets=spir64_gen,spir64"]
    assert calls(icpx)[-1][-6:] == [*link, "-Xs", "-device pvc,bmg"]
    for command in (*commands.stand_ins.values(), commands.link):
        linked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert linked.returncode == 0, linked.stderr
    listed = run(["nm", "-D", str(tmp_path / request.plan.artifact_name)])
    assert "accel_register_library" in listed.output


@needs_runtime
def test_jit_and_torchs_own_extension_tell_icpx_the_same(
    tmp_path: Path, icpx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scale(tmp_path / "op")
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    request = Request.of(builder)
    assert request.toolset is not None
    ours = build_commands(request.plan, request.toolset).compile_steps[-1].command
    monkeypatch.chdir(tmp_path)
    extension = builder.builder()
    assert all(name.endswith(".sycl") and Path(name).is_file() for name in extension.sources)
    theirs = _built_by_torch(extension, tmp_path, icpx)
    for told in (ours, theirs):
        host = next(word.partition("=")[2] for word in told if word.startswith("-fsycl-host-compiler="))
        assert shutil.which(host) is not None
    assert meaning(ours[1:]) == meaning(theirs)
    assert meaning(_host_options(ours)) == meaning(_host_options(theirs))
    assert ours[ours.index("-include") + 1].endswith("scale.sycl.hpp")
    wrapper = next(Path(word) for word in theirs if word.endswith("binding.sycl"))
    assert [line.partition('"')[2].rpartition("/")[2] for line in wrapper.read_text().splitlines()] == [
        'scale.sycl.hpp"',
        'binding.cpp"',
    ]


def meaning(arguments: list[str]) -> set[str]:
    """What of a command decides what is compiled: no files, no places, nothing that setuptools adds to every one."""
    words = iter(arguments)
    of_setuptools = ("-DPy_LIMITED_API", "-DTORCH_EXTENSION_NAME", "-DTORCH_API_INCLUDE_EXTENSION_H", "-MD", "-c")
    places = ("-I", "-fsycl-host-compiler", "-ffile-prefix-map=")
    kept: dict[str, str] = {}
    for word in words:
        if word in ("-o", "-MF", "-isystem", "-include", "-x"):
            next(words)
        elif word.startswith("-") and not word.startswith((*places, *of_setuptools)) and word not in OF_PYTHON:
            kept["-std" if word.startswith("-std=") else word] = word  # of several standards the last counts
    return set(kept.values())


def _host_options(told: list[str]) -> list[str]:
    mark = "-fsycl-host-compiler-options="
    return shlex.split(next(word.removeprefix(mark) for word in told if word.startswith(mark)))


@needs_runtime
def test_a_kernel_that_is_no_template_links_however_many_sources_read_it(tmp_path: Path, icpx: Path) -> None:  # noqa: ARG001
    write_scale(tmp_path / "op", kernel=PLAIN_KERNEL, binding=PLAIN_BINDING)
    (tmp_path / "op" / "more.cpp").write_text(
        '#include "host/launch.h"\nextern const accel::xpu::Kernel kSame;\n'
        "const accel::xpu::Kernel kSame = ACCEL_SYCL_KERNEL(tests::scale);\n"
    )

    class Two(ScaleBuilder):
        def sources(self) -> list[str]:
            return [*super().sources(), str(self.directory / "more.cpp")]

    request = Request.of(Two(tmp_path / "op", Cache(tmp_path / "cache")))
    assert request.toolset is not None
    commands = build_commands(request.plan, request.toolset)
    compiled = (step.command for step in commands.compile_steps)
    for command in (*compiled, commands.device_link, *commands.stand_ins.values(), commands.link):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@needs_runtime
def test_icpx_has_the_runtime_of_its_own_installation_and_needs_no_wheel(
    tmp_path: Path,
    icpx: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheel = find_runtime()
    assert wheel is not None
    prefix = tmp_path / "oneapi"
    (prefix / "bin").mkdir(parents=True)
    for name in ("include", "lib"):
        (prefix / name).symlink_to(getattr(wheel, "include_dir" if name == "include" else "library_dir"))
    shutil.copy(tmp_path / "bin" / "icpx", prefix / "bin" / "icpx")
    (tmp_path / "bin" / "icpx").unlink()
    (tmp_path / "bin" / "icpx").symlink_to(prefix / "bin" / "icpx")  # as a module system has it
    for module in ("sycl", "sycl_ahead"):
        monkeypatch.setattr(f"op_builder.toolchains.{module}.find_runtime", lambda: None)
    monkeypatch.setattr("op_builder.toolchains.sycl_runtime._first", lambda _prefixes: None)  # no wheel anywhere
    facts = gather_facts(has_kernel_texts=True)
    assert facts.ahead_runtime is not None
    assert (facts.runtime, facts.ahead_runtime.prefix) == (None, prefix)
    chosen = choose(facts)
    assert (isinstance(chosen, Accepted), chosen.toolchain.value) == (True, "icpx")
    write_scale(tmp_path / "op")
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    request = Request.of(builder)
    assert request.toolset is not None
    assert request.toolset.sycl == facts.ahead_runtime
    # torch's own extension takes the place that it finds when it is imported.
    monkeypatch.setattr("torch.utils.cpp_extension.SYCL_HOME", str(prefix))
    monkeypatch.chdir(tmp_path)
    extension = builder.builder()
    assert str(prefix / "lib") in extension.library_dirs
    assert str(prefix / "include") in extension.include_dirs


@needs_runtime
def test_icpx_is_kept_to_the_arithmetic_that_is_written(tmp_path: Path, icpx: Path) -> None:  # noqa: ARG001
    write_scale(tmp_path / "op")
    plan = make_plan(ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache")))
    assert plan.sycl is not None
    # In this order: what the builder says of kernels stands last.
    assert plan.sycl.flags == ("-fp-model=precise", "-no-ftz", "-ffp-contract=off")


def _built_by_torch(extension: Any, directory: Path, log: Path) -> list[str]:
    """What torch's BuildExtension tells icpx to compile the last source of ``extension``."""
    from setuptools.dist import Distribution
    from torch.utils.cpp_extension import BuildExtension

    log.write_text("")
    distribution = Distribution({"name": "made", "ext_modules": [extension]})
    command = BuildExtension(distribution)
    command.build_lib, command.build_temp = str(directory / "lib"), str(directory / "temp")
    command.ensure_finalized()
    command.run()
    compiled = [told for told in calls(log) if "-c" in told]
    assert len(compiled) == len(extension.sources)
    return next(told for told in compiled if any(word.endswith("binding.sycl") for word in told))


@needs_runtime
def test_ipex_gives_its_own_extension(tmp_path: Path, icpx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "intel_extension_for_pytorch" / "xpu"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "cpp_extension.py").write_text(
        "from setuptools import Extension\n"
        "def DPCPPExtension(name, sources, **arguments):\n"
        "    made = Extension(name, sources, **arguments)\n"
        "    made.made_by = 'DPCPPExtension'\n"
        "    return made\n"
    )
    monkeypatch.syspath_prepend(str(package.parents[1]))
    monkeypatch.setattr("op_builder.toolchains.sycl.torch_install", torch_install)
    write_scale(tmp_path / "op")
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    plan = make_plan(builder)
    assert plan.sycl is not None
    assert (plan.sycl.toolchain, plan.sycl.devices) == ("ipex", ("pvc", "bmg"))
    monkeypatch.chdir(tmp_path)
    extension = builder.builder()
    assert extension.made_by == "DPCPPExtension"
    assert [Path(name).name for name in extension.sources] == ["0_runtime.cpp", "1_binding.cpp"]
    assert "-DACCEL_SYCL_AHEAD" in extension.extra_compile_args["cxx"]
    assert icpx.parent == tmp_path


def test_an_op_for_an_ipex_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "intel_extension_for_pytorch", None)
    with pytest.raises(LoadError, match="built for intel_extension_for_pytorch, which cannot be imported") as caught:
        import_ipex()
    assert "ACCEL_SYCL_TOOLCHAIN" in caught.value.remedy


def test_an_op_with_cuda_and_sycl_sources_is_refused(tmp_path: Path) -> None:
    write_scale(tmp_path / "op")
    plan = make_plan(ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache")))
    mixed = plan._replace(sources=(*plan.sources, Source(tmp_path / "a.cu", "a.cu", Language.CUDA)))
    with pytest.raises(ToolchainError, match=r"'sycl_scale' has both CUDA and SYCL sources"):
        find_toolset(mixed, Cache(tmp_path / "cache").memo)


@needs_runtime
def test_an_ordinary_extension_embeds_the_kernel_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scale(tmp_path / "op")
    monkeypatch.chdir(tmp_path)
    extension = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache")).builder()
    assert [Path(name).name for name in extension.sources] == ["runtime.cpp", "binding.cpp", "sycl_kernel_texts.cpp"]
    assert "namespace tests" in (tmp_path / extension.sources[-1]).read_text()
    assert "sycl" in extension.libraries
    runtime = find_runtime()
    assert runtime is not None
    assert str(runtime.library_dir) in extension.library_dirs
