from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder.plan import ENTRY_POINT
from tests.support.compilers import needs_gxx
from tests.support.foreign_package import output_of, write_package
from tests.support.small_ops import STABLE_SOURCE, SmallBuilder, TextBuilder


def test_the_extension_has_the_plans_sources_and_flags(small: SmallBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.directory)
    small.flags = ["-DSCALE=3"]
    small.link = ["-lm"]
    extension, plan = small.builder(), small.plan()
    assert extension.name == "op_builder.small"
    assert [Path(name).resolve() for name in extension.sources] == [source.path for source in plan.sources]
    assert extension.extra_compile_args["cxx"] == list(plan.cxx_flags)
    assert extension.extra_link_args == ["-lm"]
    assert {str(path) for path in plan.include_dirs} <= set(extension.include_dirs)
    assert "torch_python" not in extension.libraries, "a Stable-ABI op depends on no Python"


def test_a_text_becomes_a_file_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (name,) = TextBuilder("given", {"given.cpp": "int x;"}).builder().sources
    assert Path(name).read_text() == "int x;"
    assert not Path(name).is_absolute()


def opened(binary: Path, namespace: str) -> Any:
    """The ops of a Stable-ABI binary, as the loader opens it."""
    error = ctypes.create_string_buffer(4096)
    assert getattr(ctypes.CDLL(str(binary)), ENTRY_POINT)(namespace.encode(), error, len(error)) == 0, error.value
    return getattr(torch.ops, namespace)


# Sources of one base name in two directories, each with its own value.h, and a header in their parent directory.
ELSEWHERE = {
    "__init__.py": "",
    "builders.py": """
from op_builder import Binding, CPUOpBuilder
from op_builder.builder import kernel_path_hooks

acme_kernel_path, acme_kernel_include = kernel_path_hooks("acme")


class AcmeBuilder(CPUOpBuilder):
    NAME = "acme"
    BINDING = Binding.STABLE

    def absolute_name(self):
        return "project.acme"

    def sources(self):
        return [acme_kernel_path(f"kernels/{name}/op.cpp") for name in ("binding", "ones", "twos")]

    def include_paths(self):
        return ["csrc", acme_kernel_include("kernels/include")]
""",
    "kernels/include/amount.h": "float ones();\nfloat twos();\n#define AMOUNT (ones() + twos())\n",
    "kernels/binding/op.cpp": STABLE_SOURCE,
    "kernels/ones/op.cpp": '#include "value.h"\n#include "../common.h"\nfloat ones() { return SCALE * VALUE; }\n',
    "kernels/twos/op.cpp": '#include "value.h"\n#include "../common.h"\nfloat twos() { return SCALE * VALUE; }\n',
    "kernels/ones/value.h": "#define VALUE 1.0f\n",
    "kernels/twos/value.h": "#define VALUE 2.0f\n",
    "kernels/common.h": "#define SCALE 10.0f\n",
}

# With include_package_data, setuptools refuses every path that is not relative.
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension
from acme_elsewhere.builders import AcmeBuilder

setup(name="project", packages=["project"], include_package_data=True,
      ext_modules=[AcmeBuilder().builder()], cmdclass={"build_ext": BuildExtension})
"""


@needs_gxx
def test_setuptools_builds_kernels_of_another_package(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "acme_elsewhere", ELSEWHERE)
    project = tmp_path / "project"
    write_package(project, "project", {"__init__.py": ""})
    (project / "setup.py").write_text(SETUP)
    output_of("setup.py", "build", "--build-lib", "built", cwd=project, paths=[tmp_path / "site"])
    (binary,) = (project / "built").rglob("*.so")
    x = torch.zeros(2)
    opened(binary, "accel_test_elsewhere").add_(x)
    assert x.tolist() == [30.0] * 2, "each source was compiled with its own value.h"
    objects = [path.relative_to(project) for path in tmp_path.rglob("*.o")]
    assert len(objects) == 3
    assert {path.parts[0] for path in objects} == {"build"}
    manifest = (project / "project.egg-info" / "SOURCES.txt").read_text()
    assert str(tmp_path) not in manifest
