"""pip, build and uv put the same ops into the same wheel, from a checkout and from an sdist."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from tests.support.environments import Environment, binaries_in, files_in, run, the_wheel

pytestmark = pytest.mark.slow


def test_build_makes_the_wheel_that_pip_makes(
    tree: Path, tmp_path: Path, with_torch: Environment, ops_wheel: Path
) -> None:
    """An sdist, and the wheel from that."""
    variables = {"ACCEL_BUILD_OPS": "1", "ACCEL_BUILD_TORCH": str(with_torch.python)}
    log = run(sys.executable, "-m", "build", "--outdir", tmp_path, tree, cwd=tmp_path, **variables)
    torch_of_target = f"building against torch {torch.__version__} in {with_torch.site / 'torch'}"
    assert f"op_builder: {torch_of_target} (ACCEL_BUILD_TORCH=" in log
    assert "so this build requires" not in log
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        assert not [name for name in packed.getnames() if name.endswith(".so") or "_prebuilt" in name.split("/")]
    made = the_wheel(tmp_path)
    assert made.name == ops_wheel.name
    # Without the files that name the release of setuptools, and without times: the caches may have been separate.
    times = re.compile(rb'"(?:built_at|build_s|checksum)": .*')
    ours, theirs = (
        {
            name: times.sub(b"", content)
            for name, content in files_in(wheel).items()
            if name[-6:] not in ("/WHEEL", "RECORD")
        }
        for wheel in (made, ops_wheel)
    )
    assert ours == theirs


def test_build_gets_a_torch_of_its_own_where_none_is_named(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "constraints").write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
    log = run(
        *(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, tree),
        cwd=tmp_path,
        ACCEL_BUILD_CPU_SGD="1",
        PIP_CONSTRAINT=str(tmp_path / "constraints"),
    )
    assert re.search(r"op_builder: no torch was found, so this build requires torch>=2\.10", log)
    assert re.search(r"building against torch \S+ in \S+ \(the build environment", log)
    assert binaries_in(the_wheel(tmp_path)) == ["cpu_sgd"]


LOAD = """
import logging, sys, torch
logging.basicConfig(level=logging.WARNING)
from op_builder.ops import CPUSGD, CPUAdam
for optimizer in (CPUAdam, CPUSGD):
    parameter = torch.nn.Parameter(torch.ones(9))
    parameter.grad = torch.ones(9)
    optimizer([parameter], lr=0.5).step()
    print(optimizer.__name__, round(parameter[0].item(), 3))
"""
VALUES = "CPUAdam 0.5\nCPUSGD 0.5\n"


def test_uv_installs_ops_built_against_the_torch_that_is_named(
    tree: Path, tmp_path: Path, environment: Environment
) -> None:
    pytest.importorskip("uv")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"accel-ops @ {tree.as_uri()}\n")

    def install(**switches: str) -> set[str]:
        command = ("-m", "uv", "pip", "install", "--no-deps", "--python", environment.python, "-r", requirements)
        variables = {"UV_CACHE_DIR": str(tmp_path / "uv"), "ACCEL_BUILD_TORCH": str(environment.python)}
        run(sys.executable, *command, cwd=tmp_path, **variables, **switches)
        return {path.stem for path in environment.ops.rglob("*.so")}

    # uv caches the wheels of requirements, and must not take that of another request.
    assert install() == set()
    assert install(ACCEL_BUILD_CPU_SGD="1") == {"cpu_sgd"}
    assert install(ACCEL_BUILD_CPU_SGD="1", ACCEL_BUILD_CPU_ADAM="1") == {"cpu_sgd", "cpu_adam"}
    without = environment.without_compilers(tmp_path / "empty")
    assert VALUES in environment.run("-c", LOAD, ACCEL_JIT="0", **without)


def test_an_editable_install_has_its_ops_in_the_checkout_until_they_are_edited(
    tree: Path, tmp_path: Path, environment: Environment
) -> None:
    install = ("install", "-v", "--no-deps", "--no-build-isolation", "-e", tree)
    log = environment.pip(*install, ACCEL_BUILD_CPU_ADAM="1", ACCEL_BUILD_CPU_SGD="1")
    place = tree / "op_builder" / "_prebuilt"
    assert f"op_builder: the ops of op_builder are in {place}\n" in log
    assert sorted(path.stem for path in place.rglob("*.so")) == ["cpu_adam", "cpu_sgd"]
    assert not (environment.site / "op_builder").exists()
    without = environment.without_compilers(tmp_path / "empty")
    assert VALUES in environment.run("-c", LOAD, ACCEL_JIT="0", **without)

    extension = "from torch.utils.cpp_extension import load; print(load.__module__)"
    for value, module in (("0", "torch.utils.cpp_extension"), ("1", "op_builder.cpp_extension")):
        assert module in environment.run("-c", extension, ACCEL_CPP_EXTENSION=value).split()

    kernel = tree / "csrc" / "kernels" / "cpu" / "sgd.cpp"
    kernel.write_text(f"{kernel.read_text()}\n// edited\n")
    rows = environment.report()
    assert rows["cpu_adam"]["installed"]
    assert not rows["cpu_sgd"]["installed"]
    assert rows["cpu_sgd"]["compatible"]
    assert re.search(r"It was built from other files or flags.*cpu/sgd\.cpp", rows["cpu_sgd"]["reason"])
    assert "Op 'cpu_sgd' is not available here. " in environment.run("-c", LOAD, fails=True, **without)
    output = environment.run("-c", LOAD)
    assert VALUES in output
    assert re.search("'cpu_sgd'.*It was built from other files or flags", output)
    assert "'cpu_adam'" not in output

    environment.pip(*install)
    assert not place.exists()
