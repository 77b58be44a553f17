"""Ops are built into the same wheel by whichever tool: pip, build, uv, from a checkout and from an sdist."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.environments import (
    OPS,
    Environment,
    bare_environment,
    binaries_in,
    copy_sources,
    files_in,
    make_environment,
    ops_wheel,
    run,
    shared,
    the_wheel,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory, tmp_path / "accel-ops")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ops_wheel(tmp_path_factory)


@pytest.fixture
def with_torch(tmp_path: Path) -> Environment:
    return make_environment(tmp_path / "with torch")


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(shared(tmp_path_factory, "uv-cache", lambda _: None))


def uv(*arguments: str | Path, cwd: Path, **variables: str | None) -> str:
    if importlib.util.find_spec("uv") is None:
        pytest.skip("uv is not installed")
    return run(sys.executable, "-m", "uv", *arguments, cwd=cwd, **variables)


def contents(wheel: Path) -> dict[str, bytes]:
    """A wheel's files, without those that tell which setuptools was at work."""
    return {name: content for name, content in files_in(wheel).items() if not name.endswith(("/WHEEL", "/RECORD"))}


def unpacked_sdist(tree: Path, directory: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--outdir", directory, tree, cwd=directory, ACCEL_BUILD_OPS="1")
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        assert not [name for name in packed.getnames() if name.endswith(".so") or "_prebuilt" in name.split("/")]
    shutil.unpack_archive(archive, directory / "unpacked")
    (unpacked,) = (directory / "unpacked").iterdir()
    return unpacked


def build_from_the_sdist(tree: Path, out: Path, with_torch: Environment, _: str) -> str:
    """``python -m build`` makes the sdist, and the wheel from it; the torch is named by its Python."""
    named = {"ACCEL_BUILD_TORCH": str(with_torch.python)}
    return run(sys.executable, "-m", "build", "--outdir", out, tree, cwd=out, ACCEL_BUILD_OPS="1", **named)


def build_from_the_tree(tree: Path, out: Path, with_torch: Environment, _: str) -> str:
    """The torch is named by the directory of packages it is in."""
    named = {"ACCEL_BUILD_TORCH": str(with_torch.site)}
    return run(sys.executable, "-m", "build", "--wheel", "--outdir", out, tree, cwd=out, ACCEL_BUILD_OPS="1", **named)


def uv_build(tree: Path, out: Path, with_torch: Environment, uv_cache: str) -> str:
    named = {"ACCEL_BUILD_TORCH": str(with_torch.directory), "UV_CACHE_DIR": uv_cache}
    arguments = ("build", "--wheel", "--python", sys.executable, "--out-dir", out, tree)
    return uv(*arguments, cwd=out, ACCEL_BUILD_OPS="1", **named)


def pip_from_the_unpacked_sdist(tree: Path, out: Path, with_torch: Environment, _: str) -> str:
    unpacked = unpacked_sdist(tree, out)
    return with_torch.pip("wheel", "-v", "--no-deps", "-w", out, unpacked, ACCEL_BUILD_OPS="1")


@pytest.mark.parametrize("frontend", [build_from_the_sdist, build_from_the_tree, uv_build, pip_from_the_unpacked_sdist])
def test_every_frontend_makes_the_wheel_that_pip_makes(
    tree: Path,
    tmp_path: Path,
    with_torch: Environment,
    wheel: Path,
    uv_cache: str,
    frontend: Callable[[Path, Path, Environment, str], str],
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    log = frontend(tree, out, with_torch, uv_cache)
    if "ACCEL_BUILD_TORCH" not in log:
        assert frontend is pip_from_the_unpacked_sdist
        assert f"that of the environment that is installed into, {with_torch.directory}" in log
    assert f"op_builder: building against torch {torch.__version__} in {with_torch.site / 'torch'}, that of " in log
    assert "is requested for this build" not in log
    made = the_wheel(out)
    assert made.name == wheel.name
    assert contents(made) == contents(wheel)


def test_binaries_do_not_depend_on_the_place_or_the_cache_they_are_built_in(
    tree: Path, tmp_path: Path, with_torch: Environment, wheel: Path
) -> None:
    with_torch.pip(
        "wheel", "--no-deps", "-w", tmp_path, tree, ACCEL_BUILD_CPU_SGD="1", ACCEL_CACHE_DIR=str(tmp_path / "cache")
    )
    compiled = {name: content for name, content in files_in(the_wheel(tmp_path)).items() if name.endswith(".so")}
    assert len(compiled) == 1
    assert compiled.items() <= files_in(wheel).items()


def test_build_gets_a_torch_of_its_own_where_none_is_named_and_says_so(tree: Path, tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "constraints").write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
    log = run(
        *(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, tree),
        cwd=tmp_path,
        ACCEL_BUILD_CPU_SGD="1",
        PIP_CONSTRAINT=str(tmp_path / "constraints"),
    )
    assert re.search(r"op_builder: no torch in \S+, so torch>=2\.10 is requested for this build", log)
    assert re.search(r"building against torch \S+ in \S+, that of the environment of this build", log)
    made = the_wheel(tmp_path)
    assert binaries_in(made) == ["cpu_sgd"]
    built = {name: content for name, content in files_in(made).items() if name.endswith(".so")}
    if index_torch(made) == torch.__version__:
        assert built.items() <= files_in(wheel).items()


def index_torch(wheel: Path) -> str:
    """The version of torch that the first binary in a wheel was built with."""
    manifests = [content for name, content in files_in(wheel).items() if name.endswith("/manifest.json")]
    return str(json.loads(manifests[0])["torch"])


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


@pytest.mark.usefixtures("wheel")  # which has the ops built
def test_uv_installs_ops_built_against_the_torch_that_is_named(
    tree: Path, tmp_path: Path, with_torch: Environment, uv_cache: str
) -> None:
    variables = {"UV_CACHE_DIR": uv_cache, "ACCEL_BUILD_TORCH": str(with_torch.python)}
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"accel-ops @ {tree.as_uri()}\n")

    def install(**switches: str) -> set[str]:
        arguments = ("--no-deps", "--python", with_torch.python, "-r", requirements)
        uv("pip", "install", *arguments, cwd=tmp_path, **variables, **switches)
        return {path.stem for path in with_torch.ops.rglob("*.so")}

    # uv keeps the wheels of requirements, and may not take one of another order. (A directory it builds each time.)
    assert install() == set()
    assert install(ACCEL_BUILD_CPU_SGD="1") == {"cpu_sgd"}
    assert install(ACCEL_BUILD_OPS="1") > {"cpu_sgd", "cpu_adam"}
    without = with_torch.without_compilers(tmp_path / "empty")
    assert VALUES in with_torch.run("-c", LOAD, ACCEL_JIT="0", **without)


@pytest.mark.usefixtures("wheel")
def test_an_editable_install_has_its_ops_in_the_checkout_until_they_are_edited(
    tree: Path, tmp_path: Path, with_torch: Environment
) -> None:
    switches = {"ACCEL_BUILD_CPU_ADAM": "1", "ACCEL_BUILD_CPU_SGD": "1"}
    log = with_torch.pip("install", "-v", "-e", tree, **switches)
    place = tree / "op_builder" / "_prebuilt"
    assert f"op_builder: the ops of op_builder lie in {place}\n" in log
    assert sorted(path.stem for path in place.rglob("*.so")) == ["cpu_adam", "cpu_sgd"]
    assert not (with_torch.site / "op_builder").exists()
    without = with_torch.without_compilers(tmp_path / "empty")
    assert VALUES in with_torch.run("-c", LOAD, ACCEL_JIT="0", **without)

    kernel = tree / "csrc" / "kernels" / "cpu" / "sgd.cpp"
    kernel.write_text(f"{kernel.read_text()}\n// edited\n")
    rows = with_torch.report()
    assert rows["cpu_adam"]["installed"]
    assert not rows["cpu_sgd"]["installed"]
    assert rows["cpu_sgd"]["compatible"]
    assert "the prebuilt binary is ignored: it was built from another recipe" in rows["cpu_sgd"]["reason"]
    assert "cpu/sgd.cpp" in rows["cpu_sgd"]["reason"]
    assert "Op 'cpu_sgd' is not available here. " in with_torch.run("-c", LOAD, fails=True, **without)
    told = with_torch.run("-c", LOAD)
    assert VALUES in told
    assert "The prebuilt 'cpu_sgd' is ignored: it was built from another recipe" in told
    assert "'cpu_adam' is ignored" not in told

    out = tmp_path / "out"
    out.mkdir()
    bare = bare_environment(tmp_path / "bare")
    bare.pip("wheel", "--no-deps", "-w", out, tree)
    plain = the_wheel(out)
    assert plain.name.endswith("-py3-none-any.whl")
    assert not [name for name in files_in(plain) if name.startswith(OPS)]
    sdist = tmp_path / "sdist"
    sdist.mkdir()
    unpacked_sdist(tree, sdist)  # which sees that there are none in it
    with_torch.pip("wheel", "--no-deps", "-w", sdist, tree, ACCEL_BUILD_CPU_ADAM="1")
    assert binaries_in(the_wheel(sdist)) == ["cpu_adam"], "none of those that lie in the checkout"


def test_prebuilt_ops_in_a_checkout_are_nothing_that_git_would_add() -> None:
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no git checkout")
    for name in ("wheel.json", "ops/cpu_adam/a/b/manifest.json", "ops/cpu_adam/a/b/cpu_adam.so"):
        run("git", "check-ignore", f"{OPS}{name}", cwd=root)
