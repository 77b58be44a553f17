"""The examples of the engine in another project, in an environment without torch."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from examples.embedding.__main__ import EXAMPLES
from op_builder.engine.ninja import find_ninja
from tests.support.environments import ROOT, bare_environment

pytestmark = pytest.mark.slow

NEEDED = ("nanobind", "tvm_ffi", "typing_extensions.py", "numpy", "numpy.libs")


def test_the_examples_run_without_torch(plain_wheel: Path, tmp_path: Path) -> None:
    environment = bare_environment(tmp_path / "environment")
    environment.pip("install", "--no-deps", plain_wheel)
    (environment.programs / "ninja").symlink_to(find_ninja())
    for name in NEEDED:
        (environment.site / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
    for name in ("torch", "psutil", "rich", "filelock", "packaging", "xxhash"):
        assert f"No module named '{name}'" in environment.run("-c", f"import {name}", fails=True)
    shutil.copytree(ROOT / "examples" / "embedding", environment.directory / "embedding")
    for state in ("(built, because", "(cached)"):
        output = environment.run("-m", "embedding", "--cache", tmp_path / "cache")
        for name in EXAMPLES:
            assert f"{name}: [2.0, 4.0, 6.0] {state}" in output
