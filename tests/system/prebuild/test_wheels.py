"""Ops built into the wheel: ``ACCEL_BUILD_OPS=1 pip install .``, for real, and what it installs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import release
import torch

from op_builder.catalog.builders import DeclaredCPUBuilder
from op_builder.catalog.registry import all_builders
from op_builder.toolchains.oneccl import find_oneccl
from tests.support.environments import Environment, binaries_in, copy_sources, files_in, index_of, run, the_wheel

pytestmark = pytest.mark.slow

HOST_OPS = sorted(
    name
    for name, builder in all_builders("op_builder.cpu").items()
    if isinstance(builder, DeclaredCPUBuilder) and (name != "ccl_comm" or find_oneccl() is not None)
)
NOT_OF_THE_CPU = "rms_norm"


LOAD = """
import sys
from op_builder.cache.store import Cache
from op_builder.load.load import load
from op_builder.catalog.named import find_op
for name in sys.argv[1:]:
    load(find_op(name), Cache())
print("loaded all")
"""


# Installing ------------------------------------------------------------------------------


def test_pip_builds_every_host_op_against_the_installed_torch(ops_wheel: Path, with_torch: Environment) -> None:
    log = (ops_wheel.parent / "log").read_text()
    where = f"in {with_torch.site / 'torch'} (the target environment, {with_torch.directory})"
    assert where in log
    assert not re.search(r"(Collecting|Downloading|Processing|Using cached|Obtaining) \S*torch\b", log)
    for op in HOST_OPS:
        assert re.search(rf"op_builder: {op}: (cached|\[\d+/\d+\] )", log), f"{op} was built, visibly"
    assert re.search(rf"op_builder: left out .*\b{NOT_OF_THE_CPU}\b.*: ", log)
    assert binaries_in(ops_wheel) == HOST_OPS


def listing(site: Path) -> dict[Path, int]:
    packages = (site / "op_builder", site / "accelerator")
    return {path: path.stat().st_mtime_ns for package in packages for path in package.rglob("*")}


def test_every_host_op_loads_where_no_compiler_is_and_writes_nothing_into_the_installation(
    installed: Environment, tmp_path: Path
) -> None:
    before = listing(installed.site)
    output = installed.run("-c", LOAD, *HOST_OPS, ACCEL_JIT="0", **installed.without_compilers(tmp_path / "cache"))
    assert "loaded all" in output
    assert "prebuilt" not in output, "a warning"
    assert listing(installed.site) == before
    assert not (tmp_path / "cache" / "v1" / "ops").exists()


# Its libraries and bytes -----------------------------------------------------------------


def test_auditwheel_finds_no_library_but_torchs_own_and_oneccls(ops_wheel: Path) -> None:
    pytest.importorskip("auditwheel")
    output = run(sys.executable, "-m", "auditwheel", "show", "--json", ops_wheel, cwd=ops_wheel.parent)
    audit = json.JSONDecoder().raw_decode(output)[0]
    assert not audit["pure"]
    assert audit["external_libs"], "torch's, at least"
    others = {name for name in audit["external_libs"] if not re.fullmatch(r"lib(torch|c10)\w*\.so", name)}
    assert others == ({"libccl.so.1"} if "ccl_comm" in HOST_OPS else set()), "oneCCL's is for the op that is made of it"
    assert not audit["unsupported_isa"], "nothing is compiled for one CPU alone"
    for upgrade in audit["policy_upgrades"].values():
        assert "blacklisted_symbols" not in upgrade


def test_sdist_and_wheel_are_equal_whenever_and_wherever_they_are_built(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rounds = []
    for place in ("a", "elsewhere/b"):
        directory = tmp_path / place
        tree = copy_sources(tmp_path_factory, directory / "accel-ops")
        for path in tree.rglob("*.*"):
            path.touch()
        variables = {"SOURCE_DATE_EPOCH": "1700000001", "ACCEL_CACHE_DIR": str(directory / "cache")}
        command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", directory, tree]
        run(*command, cwd=directory, **variables)
        (sdist,) = directory.glob("*.tar.gz")
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", directory, sdist]
        run(*command, cwd=directory, ACCEL_BUILD_PIN_MEMORY="1", **variables)
        rounds.append((sdist, the_wheel(directory)))
    assert binaries_in(rounds[0][1]) == ["pin_memory"]
    for first, second in zip(*rounds, strict=True):
        release.require_equal(first, second)


# CUDA, from a machine that has a toolkit and no device ---------------------------------------


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_cuda_ops_are_built_without_a_device_in_addition_to_those_of_the_cpu(
    tree: Path, environment: Environment, tmp_path: Path
) -> None:
    variables = {
        "ACCEL_ACCELERATOR": "cuda",
        "ACCEL_BUILD_FUSED_LION": "1",
        "TORCH_CUDA_ARCH_LIST": "8.0;9.0+PTX",
        "CUDA_VISIBLE_DEVICES": "",
    }
    label = "-C--global-option=egg_info --tag-build=+cuda"
    options = ("-v", "--no-deps", "--no-build-isolation", label)
    log = environment.pip("wheel", *options, "-w", tmp_path, tree, **variables)
    assert "accelerator cuda (named)" in log
    made = the_wheel(tmp_path)
    assert made.name.split("-")[1].endswith("+cuda")
    assert binaries_in(made) == ["fused_lion", "fused_lion"]
    index = index_of(made)
    assert index["accelerator"] == "cuda"
    archs = {tuple(op["cuda_archs"]): op for op in index["ops"]}
    assert set(archs) == {("8.0", "9.0+PTX"), ()}
    assert len(archs["8.0", "9.0+PTX"]["compilers"]) == 2, "nvcc and its host compiler"
    cuda = files_in(made)[f"op_builder/_prebuilt/{archs['8.0', '9.0+PTX']['binary']}"]
    for code in (b"sm_80", b"sm_90"):
        assert code in cuda
    assert made.stat().st_size < 5 << 20

    environment.pip("install", "--no-deps", made)
    without = {**environment.without_compilers(tmp_path / "empty"), "CUDA_VISIBLE_DEVICES": ""}
    row = environment.report(**without)["fused_lion"]
    assert row["installed"]
    assert row["prebuilt"]["cuda_archs"] == []
    assert row["reason"] == ""
    output = environment.run("-c", LOAD, "fused_lion", ACCEL_JIT="0", **without)
    assert "loaded all" in output
    assert "prebuilt" not in output, "a warning"
    if torch.version.cuda is None:
        # For CUDA itself it is installed, too, and this torch cannot use it.
        row = environment.report(**{**without, "ACCEL_ACCELERATOR": "cuda"})["fused_lion"]
        assert not row["compatible"]
        assert "CUDA" in row["reason"]
