"""Wheels for other platforms, compiled by the package ziglang."""

from __future__ import annotations

import platform
import struct
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from op_builder.system.elf import dynamic_symbols
from op_builder.system.macho import read_library
from tests.support.environments import copy_sources, files_in, index_of, run, the_wheel

pytestmark = pytest.mark.slow

OP = "pin_memory"
LOAD = "from op_builder.cpu import PinMemoryBuilder; PinMemoryBuilder().load()"
USE = """
import sys, torch
from op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder
from op_builder.ops import CPUAdam
AsyncIOBuilder().load().aio_handle().sync_pwrite(torch.arange(99.0), sys.argv[1])
print(torch.from_file(sys.argv[1], size=99).sum().item())
mine, theirs = (torch.linspace(-1, 1, 1001, requires_grad=True) for _ in range(2))
for made in (CPUAdam([mine], lr=0.1), torch.optim.AdamW([theirs], lr=0.1, weight_decay=0)):
    for _ in range(3):
        made.zero_grad()
        made.param_groups[0]["params"][0].square().sum().backward()
        made.step()
torch.testing.assert_close(mine, theirs)
"""
ARM64 = 0x100000C  # CPU_TYPE_ARM64


@pytest.fixture
def wheel(request: pytest.FixtureRequest, packages: Path, tmp_path: Path) -> Path:
    """The wheel with the ops for the platform that the test names."""
    target, *ops = request.param.split()
    tree = copy_sources(request.getfixturevalue("tmp_path_factory"), tmp_path / "accel-ops")
    options = ("--target", target, "--wheel", tmp_path / "dist", *(ops or [OP]))
    run(sys.executable, "-m", "op_builder.build", *options, cwd=tree, PYTHONPATH=f"{tree}:{packages}")
    return the_wheel(tmp_path / "dist")


def binary_of(wheel: Path, directory: Path, target: str) -> Path:
    (facts,) = index_of(wheel)["ops"]
    assert facts["check"] == f"undefined symbols only: it is for {target}"
    file = directory / "binary"
    file.write_bytes(files_in(wheel)[f"op_builder/_prebuilt/{facts['binary']}"])
    return file


@pytest.mark.parametrize("wheel", ["linux_x86_64 cpu_adam async_io"], indirect=True)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 machine")
def test_a_wheel_for_x86_64_needs_only_glibc_2_17_and_works(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    place = tmp_path / "unpacked"
    run(sys.executable, "-m", "zipfile", "-e", wheel, place, cwd=tmp_path)
    variables = {"PYTHONPATH": str(place), "ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(tmp_path / "cache")}
    assert run(sys.executable, "-c", USE, tmp_path / "file", cwd=tmp_path, **variables).strip() == "4851.0"


@pytest.mark.parametrize("wheel", ["linux_aarch64"], indirect=True)
def test_a_wheel_for_aarch64_needs_only_glibc_2_17_and_is_ignored_elsewhere(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.endswith("-py3-none-manylinux_2_17_aarch64.whl")
    file = binary_of(wheel, tmp_path, "linux_aarch64")
    with file.open("rb") as opened:
        elf = ELFFile(opened)
        assert elf["e_machine"] == "EM_AARCH64"
        needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    assert needed >= {"libtorch_cpu.so", "libc.so.6"}
    assert not any("stdc++" in name or "c++" in name for name in needed)
    defined, undefined = dynamic_symbols(file)
    assert "accel_register_library" in defined
    assert "aoti_torch_library_def" in undefined

    place = tmp_path / "unpacked"
    options = ("--no-deps", "--no-index", "--only-binary", ":all:", "--platform", "manylinux_2_17_aarch64")
    run(sys.executable, "-m", "pip", "install", "-q", "--target", place, *options, wheel, cwd=tmp_path)
    variables = {"PYTHONPATH": str(place), "ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(tmp_path / "cache")}
    output = run(sys.executable, "-c", LOAD, cwd=tmp_path, fails=True, **variables)
    assert "The prebuilt 'pin_memory' is ignored: it was built for linux aarch64, this is linux" in output
    assert "Remedy:" in output


@pytest.mark.parametrize("wheel", ["macosx_arm64"], indirect=True)
def test_a_wheel_for_macos_needs_only_torch_and_the_system(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.endswith("-py3-none-macosx_11_0_arm64.whl")
    file = binary_of(wheel, tmp_path, "macosx_arm64")
    assert struct.unpack_from("<2I", file.read_bytes()) == (0xFEEDFACF, ARM64)
    library = read_library(file)
    assert library.least_macos == "11.0"
    assert "accel_register_library" in library.defined
    of_process = {name for name in library.undefined if "@" not in name}
    assert of_process >= {"aoti_torch_library_def", "torch_library_impl"}
    assert all(name.startswith(("aoti_torch_", "torch_")) for name in of_process)
    assert {name.partition("@")[2] for name in library.undefined - of_process} == {"/usr/lib/libSystem.B.dylib"}
