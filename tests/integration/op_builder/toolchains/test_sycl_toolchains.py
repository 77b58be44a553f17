"""Which toolchain a SYCL op is compiled with, and the arguments of icpx and IPEX, by a stand-in for the compiler."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from setuptools.dist import Distribution
from torch.utils.cpp_extension import BuildExtension

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.engine.commands import build_commands
from op_builder.plan import Language
from op_builder.system.outcomes import Passed
from op_builder.system.process import run
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.sycl import choose, gather_facts
from op_builder.toolchains.sycl_runtime import find_runtime
from tests.support import stand_in_icpx
from tests.support.builds import lookup
from tests.support.compilers import program, shared_library
from tests.support.foreign_package import write_package
from tests.support.sycl_ops import ScaleBuilder, needs_runtime, write_scale


@pytest.fixture
def icpx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch for XPU as far as its commands go, with the stand-in on PATH; the file that logs its calls."""
    directory = tmp_path / "bin"
    interpreter, stand_in = map(shlex.quote, (sys.executable, stand_in_icpx.__file__))
    program(directory / "icpx", f'exec {interpreter} -S {stand_in} "$@"')
    # Further libraries of an XPU build of torch, empty because nothing in them is called.
    for name in ("torch_xpu", "c10_xpu"):
        shared_library(directory / f"lib{name}.so", "")
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


def test_icpx_compiles_the_plan_as_torch_does_and_the_host_side_builds(tmp_path: Path, icpx: Path) -> None:
    write_scale(tmp_path / "op")
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    plan, _, toolset = lookup(builder).to_build()
    assert {source.language for source in plan.sources} == {Language.SYCL}
    commands = build_commands(plan, toolset)

    def run_here(command: Sequence[str]) -> None:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    for step in commands.compile_steps:
        run_here(step.command)
        assert (tmp_path / step.object_name).exists()
        # The kernels' texts are read before the binding, so an edited one is noticed.
        assert ("factor.h" in (tmp_path / step.depfile).read_text()) is (step.source.path.name == "binding.cpp")
    run_here(commands.device_link)
    link = ["-fsycl", "-fsycl-link", "--offload-compress", "-fsycl-targets=spir64_gen,spir64"]
    assert calls(icpx)[-1][-6:] == [*link, "-Xs", "-device pvc,bmg"]
    for command in (*commands.stand_ins.values(), commands.link):
        run_here(command)
    listed = run(["nm", "-D", str(tmp_path / plan.artifact_name)])
    assert "accel_register_library" in listed.output


@pytest.mark.slow
@needs_runtime
def test_torchs_own_extension_has_icpx_compile_the_same_plan(
    tmp_path: Path, icpx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in refuses commands without the plan's flags."""
    write_scale(tmp_path / "op")
    monkeypatch.chdir(tmp_path)
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    extension, plan = builder.builder(), builder.plan()
    command = BuildExtension(Distribution({"name": "made", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "temp")
    command.ensure_finalized()
    command.run()
    compiled = [call for call in calls(icpx) if "-c" in call]
    assert len(compiled) == len(extension.sources)
    assert all("-fsycl-targets=spir64_gen,spir64" in call for call in compiled)
    assert plan.sycl is not None
    assert all({*plan.cxx_flags, *plan.sycl.flags} <= {*call} for call in compiled)
    (wrapper,) = (Path(name) for name in extension.sources if name.endswith("binding.sycl"))
    included = [line.partition('"')[2].rpartition("/")[2] for line in wrapper.read_text().splitlines()]
    assert included == ['scale.sycl.hpp"', 'binding.cpp"']


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
    (prefix / "include").symlink_to(wheel.include_dir)
    (prefix / "lib").symlink_to(wheel.library_dir)
    shutil.copy(tmp_path / "bin" / "icpx", prefix / "bin" / "icpx")
    (tmp_path / "bin" / "icpx").unlink()
    (tmp_path / "bin" / "icpx").symlink_to(prefix / "bin" / "icpx")  # as a module system has it
    for module in ("sycl", "sycl_ahead"):
        monkeypatch.setattr(f"op_builder.toolchains.{module}.find_runtime", lambda: None)
    monkeypatch.setattr("op_builder.toolchains.sycl_runtime.wheel_prefixes", list)
    facts = gather_facts(has_kernel_texts=True)
    assert facts.ahead_runtime is not None
    assert (facts.runtime, facts.ahead_runtime.prefix) == (None, prefix)
    chosen = choose(facts)
    assert (isinstance(chosen, Passed), chosen.name) == (True, "icpx")
    write_scale(tmp_path / "op")
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    _, _, toolset = lookup(builder).to_build()
    assert toolset.sycl == facts.ahead_runtime
    # torch's own extension takes the place that it finds when it is imported.
    monkeypatch.setattr("torch.utils.cpp_extension.SYCL_HOME", str(prefix))
    monkeypatch.chdir(tmp_path)
    extension = builder.builder()
    assert str(prefix / "lib") in extension.library_dirs
    assert str(prefix / "include") in extension.include_dirs


@needs_runtime
def test_ipex_gives_its_own_extension(tmp_path: Path, icpx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from setuptools import Extension\n"
        "def DPCPPExtension(name, sources, **arguments):\n"
        "    made = Extension(name, sources, **arguments)\n"
        "    made.made_by = 'DPCPPExtension'\n"
        "    return made\n"
    )
    write_package(tmp_path / "site", "intel_extension_for_pytorch", {"xpu/cpp_extension.py": code})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("op_builder.toolchains.sycl.torch_install", torch_install)
    write_scale(tmp_path / "op")
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    plan = builder.plan()
    assert plan.sycl is not None
    assert (plan.sycl.toolchain, plan.sycl.devices) == ("ipex", ("pvc", "bmg"))
    monkeypatch.chdir(tmp_path)
    extension = builder.builder()
    assert extension.made_by == "DPCPPExtension"
    assert [Path(name).name for name in extension.sources] == ["0_launch.cpp", "1_binding.cpp"]
    assert "-DACCEL_SYCL_AHEAD" in extension.extra_compile_args["cxx"]
    assert icpx.parent == tmp_path


@needs_runtime
def test_an_ordinary_extension_embeds_the_kernel_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scale(tmp_path / "op")
    monkeypatch.chdir(tmp_path)
    extension = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache")).builder()
    assert [Path(name).name for name in extension.sources] == ["launch.cpp", "binding.cpp", "sycl_kernel_texts.cpp"]
    assert "namespace tests" in (tmp_path / extension.sources[-1]).read_text()
    assert "sycl" in extension.libraries
    runtime = find_runtime()
    assert runtime is not None
    assert str(runtime.library_dir) in extension.library_dirs
