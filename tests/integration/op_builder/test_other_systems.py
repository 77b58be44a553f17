"""What Windows and macOS lack or do in another way, shown on Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.catalog.index import NAMES, family_of
from op_builder.ops.declare import system_check
from op_builder.system.outcomes import Failed
from op_builder.system.target import library_file
from tests.support.foreign_package import python


def test_on_windows_every_module_can_be_imported_and_ops_are_refused_with_a_remedy() -> None:
    done = python("-m", "tests.support.on_windows")
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, *done.stderr.strip().split("accel-launch: ")):
        assert "need Linux or macOS; this is Windows.\n  Remedy: Use WSL 2." in text


def test_on_macos_libraries_find_torchs_functions_in_the_process(tmp_path: Path) -> None:
    done = python(
        "-c",
        f"""
import ctypes, os
import torch
from op_builder.load import open as loader
from op_builder.system import torch_install
found = torch_install.torch_install()
os.mkdir({str(tmp_path / "lib")!r})
for name in ("torch_cpu", "torch_python"):
    os.symlink(found.library_dir / f"lib{{name}}.so", f"{tmp_path}/lib/lib{{name}}.dylib")
loader.torch_install = lambda: found._replace(root=torch_install.Path({str(tmp_path)!r}))
process = ctypes.CDLL(None)
assert not hasattr(process, "aoti_torch_dtype_float32")
loader.open_torch_globally()
assert process.aoti_torch_dtype_float32() == 6
""",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("system", "file"), [("linux", "libtorch.so"), ("darwin", "libtorch.dylib"), ("win32", "torch.dll")]
)
def test_names_of_libraries_are_the_systems(system: str, file: str) -> None:
    assert library_file("torch", system) == file


@pytest.mark.parametrize("name", ["shm_comm", "ccl_comm"])
def test_ops_of_linux_are_refused_on_macos_with_the_declared_reason(name: str) -> None:
    family = family_of(NAMES[name])
    assert family is not None
    (outcome,) = system_check(family.not_on, "darwin")
    assert isinstance(outcome, Failed)
    assert "Linux; this is darwin." in outcome.reason
    assert not system_check(family.not_on, "linux")
