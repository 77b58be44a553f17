"""``builder()``: the plan as a setuptools extension, built by torch's own ``BuildExtension``."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from foreign_package import ROOT
from small_ops import SmallBuilder

from op_builder import env
from op_builder.plan import ENTRY_POINT


def test_the_extension_is_the_plan(small: SmallBuilder) -> None:
    small.flags = ["-DSCALE=3"]
    small.link = ["-lm"]
    extension, plan = small.builder(), small.plan()
    assert extension.name == "op_builder.small"
    assert [Path(name).resolve() for name in extension.sources] == [source.path for source in plan.sources]
    assert extension.extra_compile_args["cxx"] == list(plan.cxx_flags)
    assert extension.extra_link_args == ["-lm"]
    assert {str(path) for path in plan.include_dirs} <= set(extension.include_dirs)
    assert "torch_python" not in extension.libraries, "a Stable-ABI op knows no Python"


def test_sources_below_the_current_directory_are_named_relative_to_it(
    small: SmallBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small.directory)
    assert small.builder().sources == ["small.cpp"]


@pytest.mark.slow
def test_setuptools_builds_an_extension_that_loads_and_works(small: SmallBuilder) -> None:
    (small.directory / "setup.py").write_text(
        textwrap.dedent("""
            from pathlib import Path
            from setuptools import setup
            from torch.utils.cpp_extension import BuildExtension
            from small_ops import SmallBuilder
            from op_builder.cache.store import Cache

            builder = SmallBuilder(Path.cwd(), Cache(Path("cache")))
            setup(name="small", ext_modules=[builder.builder()], cmdclass={"build_ext": BuildExtension})
        """)
    )
    path = f"{ROOT}:{Path(__file__).parent}"
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", "built"],
        cwd=small.directory,
        env=env.child_environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (binary,) = (small.directory / "built").rglob("*.so")
    assert binary.name == "small.abi3.so"
    library = ctypes.CDLL(str(binary))
    error = ctypes.create_string_buffer(4096)
    assert getattr(library, ENTRY_POINT)(b"accel_test_setuptools", error, len(error)) == 0, error.value
    x = torch.zeros(3)
    torch.ops.accel_test_setuptools.add_(x)
    assert x.tolist() == [1.0] * 3
