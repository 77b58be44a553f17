"""The template, installed as its README says into a fresh environment beside an installed accel-ops."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from op_builder.toolchains.sycl_runtime import find_runtime
from tests.support.environments import (
    ROOT,
    Environment,
    binaries_in,
    copy_sources,
    files_in,
    make_environment,
    run,
    the_wheel,
)

pytestmark = pytest.mark.slow

OP, CUDA_OP, SYCL_OP = "my_add_rms_norm", "my_add_rms_norm_cuda", "my_add_rms_norm_sycl"

# By name, as any op of the device, and by the package's own function.
USE = """
import torch
from accelerator import get_accelerator
import my_ops
opened = get_accelerator().create_op_builder("MyAddRmsNormBuilder").load()
x, residual = torch.ones(2, 4), torch.ones(2, 4)
normed = my_ops.add_rms_norm(x, residual, torch.ones(4))
assert torch.equal(residual, torch.full((2, 4), 2.0)), residual
torch.testing.assert_close(normed, torch.ones(2, 4))
print("used", opened)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The template, copied out of the checkout as an author would."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "_prebuilt")
    return Path(shutil.copytree(ROOT / "examples" / "my_ops", tmp_path / "my_ops", ignore=ignored))


@pytest.fixture
def environment(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """It has torch and accel-ops, without ops."""
    made = make_environment(tmp_path / "venv")
    made.pip("install", "--no-deps", copy_sources(tmp_path_factory, tmp_path / "accel-ops"))
    return made


def test_the_templates_backend_is_this_projects() -> None:
    name = Path("build_tools", "accel_build_backend.py")
    assert filecmp.cmp(ROOT / name, ROOT / "examples" / "my_ops" / name, shallow=False)


def test_a_plain_installation_compiles_nothing_and_its_op_when_it_is_used(
    environment: Environment, project: Path, tmp_path: Path
) -> None:
    log = environment.pip("install", "-v", project, **environment.without_compilers(tmp_path / "none"))
    assert "op_builder:" not in log
    cache = str(tmp_path / "cache")  # other tests compile the op into that of this run
    before = environment.report(ACCEL_CACHE_DIR=cache)
    assert (before[OP]["installed"], before[OP]["cached"], before[OP]["compatible"]) == (False, False, True)
    assert "used" in environment.run("-c", USE, ACCEL_CACHE_DIR=cache)
    after = environment.report(ACCEL_CACHE_DIR=cache)
    assert (after[OP]["installed"], after[OP]["cached"], after[OP]["compatible"]) == (False, True, True)
    assert not after[CUDA_OP]["compatible"]
    assert after[CUDA_OP]["reason"]
    assert "my_ops" in environment.run("-m", "my_ops", ACCEL_CACHE_DIR=cache)


FIND = """
import runpy, sys
print(runpy.run_path(sys.argv[1])["_installed"]())
"""


def test_the_backend_finds_accel_ops_where_it_is_installed_whatever_has_the_torch(
    environment: Environment, tmp_path: Path
) -> None:
    backend = ROOT / "build_tools" / "accel_build_backend.py"
    torch_alone = tmp_path / "torch-alone"
    torch_alone.mkdir()
    named = [None, environment.site, environment.directory, environment.python, torch_alone, tmp_path / "nothing"]
    for place in named:
        found = environment.run("-c", FIND, backend, ACCEL_BUILD_TORCH=None if place is None else str(place))
        assert found.strip() == str(environment.site), place


@pytest.mark.parametrize("switch", [{}, {"ACCEL_BUILD_CPU_ADAM": "1"}], ids=["plain", "other ops asked for"])
def test_what_an_editable_install_left_is_refused_in_a_plain_wheel(
    environment: Environment, project: Path, tmp_path: Path, switch: dict[str, str]
) -> None:
    left = project / "my_ops" / "_prebuilt" / "ops" / "left.so"
    left.parent.mkdir(parents=True)
    left.touch()
    settings = project / "pyproject.toml"
    text = settings.read_text()
    assert '"my_ops.kernels" = ["*"]' in text
    settings.write_text(text.replace('"my_ops.kernels" = ["*"]', '"*" = ["**/*"]'))
    told = environment.pip("wheel", "--no-deps", "-w", tmp_path / "out", project, fails=True, **switch)
    assert "package data takes in what an editable install left: my_ops/_prebuilt/ops/left.so" in told
    assert not list((tmp_path / "out").glob("*.whl"))


def test_the_sdist_brings_the_backend(environment: Environment, project: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, project, cwd=tmp_path)
    (sdist,) = tmp_path.glob("my_ops-*.tar.gz")
    environment.pip("install", sdist)
    assert environment.report()[OP]["compatible"]


def test_a_prebuilt_installation_needs_no_compiler(environment: Environment, project: Path, tmp_path: Path) -> None:
    log = environment.pip("install", "-v", project, ACCEL_BUILD_OPS="1")
    assert "op_builder: built in " in log
    assert f"op_builder: left out {CUDA_OP}: it is for cuda; ACCEL_ACCELERATOR=cuda builds it" in log
    assert not list(environment.ops.rglob("*.so")), "accel-ops itself was installed without"
    variables = {**environment.without_compilers(tmp_path / "none"), "ACCEL_JIT": "0"}
    assert "used" in environment.run("-c", USE, **variables)
    assert not (tmp_path / "none").exists()
    row = environment.report(**variables)[OP]
    assert (row["installed"], row["cached"], row["compatible"]) == (True, False, True)
    assert (row["prebuilt"]["torch_needed"], row["prebuilt"]["python_needed"]) == (">=2.10", "any")
    shown = environment.run("-m", "op_builder.report", COLUMNS="200", **variables)
    left_out = rf" +without +{CUDA_OP}: it is for cuda;.*\n +without +{SYCL_OP}: it is for xpu;.*\n"
    assert re.search(rf"^ my_ops +py3-none-.*\n{left_out} +with +{OP}: for torch", shown, re.MULTILINE)


def test_its_own_variables_are_known_and_those_of_others_refused(environment: Environment, project: Path) -> None:
    told = environment.pip("wheel", "--no-deps", project, fails=True, ACCEL_BUILD_MY_ADD_RMS_NRM="1")
    assert "ACCEL_BUILD_MY_ADD_RMS_NRM is set, and there is no op of that name." in told
    assert "Did you mean ACCEL_BUILD_MY_ADD_RMS_NORM" in told
    # Another project's switch, exported for both, does not stand in the way.
    variables = {"ACCEL_BUILD_CPU_ADAM": "0", "ACCEL_BUILD_MY_ADD_RMS_NORM": "1"}
    environment.pip("wheel", "--no-deps", "-w", environment.directory / "made", project, **variables)
    wheel = the_wheel(environment.directory / "made")
    assert "-py3-none-" in wheel.name
    assert binaries_in(wheel) == [OP]
    index = json.loads(files_in(wheel)["my_ops/_prebuilt/wheel.json"])
    assert [op["op"] for op in index["ops"]] == [OP]


USE_SYCL = """
import torch
from my_ops.builders import MyAddRmsNormSyclBuilder
op = MyAddRmsNormSyclBuilder().load()
out, residual = torch.empty(2, 4), torch.ones(2, 4)
op.add_rms_norm(out, residual, torch.ones(2, 4), torch.ones(4), 1e-6)
assert torch.equal(residual, torch.full((2, 4), 2.0)), residual
torch.testing.assert_close(out, torch.ones(2, 4))
print("used", op)
"""


def lay_runtime_into(prefix: Path) -> None:
    """The SYCL runtime of this environment as pip would have installed it into another, by links."""
    runtime = find_runtime()
    assert runtime is not None
    files = (path for path in runtime.library_dir.iterdir() if path.is_file())
    for path in (*files, *filter(Path.is_dir, runtime.header_dirs)):
        link = prefix / path.relative_to(runtime.prefix)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path)


@pytest.mark.skipif(find_runtime() is None, reason="needs the SYCL runtime: pip install 'accel-ops[sycl]'")
def test_the_sycl_op_is_prebuilt_with_its_kernel_and_runs_without_a_compiler(
    environment: Environment, project: Path, tmp_path: Path
) -> None:
    lay_runtime_into(environment.directory)
    environment.pip("install", "-v", project, ACCEL_BUILD_MY_ADD_RMS_NORM_SYCL="1")
    variables = {**environment.without_compilers(tmp_path / "none"), "ACCEL_JIT": "0"}
    variables["ACCEL_CACHE_DIR"] = str(tmp_path / "cache")
    row = environment.report(**variables)[SYCL_OP]
    assert (row["installed"], row["cached"], row["compatible"]) == (True, False, True), row
    assert "used" in environment.run("-c", USE_SYCL, **variables)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_the_cuda_op_is_built_without_a_device(environment: Environment, project: Path) -> None:
    variables = {"ACCEL_ACCELERATOR": "cuda", "TORCH_CUDA_ARCH_LIST": "9.0", "ACCEL_BUILD_OPS": "1"}
    environment.pip("wheel", "--no-deps", "-w", environment.directory / "made", project, **variables)
    wheel = the_wheel(environment.directory / "made")
    assert binaries_in(wheel) == [OP, CUDA_OP]
    index = json.loads(files_in(wheel)["my_ops/_prebuilt/wheel.json"])
    assert {op["op"]: op["cuda_archs"] for op in index["ops"]} == {OP: [], CUDA_OP: ["9.0"]}


def test_without_accel_ops_a_plain_wheel_is_still_made_and_an_order_is_refused(project: Path, tmp_path: Path) -> None:
    alone = make_environment(tmp_path / "alone")
    alone.pip("wheel", "--no-deps", "-w", tmp_path / "made", project)
    assert the_wheel(tmp_path / "made").name.endswith("-py3-none-any.whl")
    told = alone.pip("wheel", "--no-deps", "--no-build-isolation", project, fails=True, ACCEL_BUILD_OPS="1")
    assert "accel-ops, which builds them, is not installed here" in told
