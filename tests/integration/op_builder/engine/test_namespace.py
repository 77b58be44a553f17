"""``accel-ops build OP --namespace NAME``: a library that programs open without this project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder import env
from op_builder.build import main
from op_builder.cache.store import Cache
from op_builder.system.torch_install import torch_install
from tests.support.compilers import needs_gxx
from tests.support.environments import run
from tests.support.foreign_package import ROOT, importable, output_of

BUILDERS = """
from op_builder import Binding, CPUOpBuilder

class TwiceBuilder(CPUOpBuilder):
    NAME = "twice"
    BINDING = Binding.STABLE

    def sources(self):
        return []

    def source_texts(self):
        return {"twice.cpp": TEXT}

    def include_paths(self):
        return ["csrc"]

class TorchBuilder(TwiceBuilder):
    BINDING = Binding.TORCH
"""

# torch's stable C ABI, because torch/torch.h takes half a minute to compile.
PROGRAM = """
#include <dlfcn.h>
#include <cstdio>
#include <torch/csrc/stable/ops.h>

int main(int, char** arguments) {
  if (dlopen(arguments[1], RTLD_NOW) == nullptr) return std::puts(dlerror()), 1;
  int64_t size = 3;
  float data[3] = {1, 2, 3};
  int64_t stride = 1;
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(
      data, 1, &size, &stride, 0, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, &handle));
  StableIValue stack[1] = {torch::stable::detail::from(torch::stable::Tensor(handle))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("acme::twice", "", stack, TORCH_ABI_VERSION));
  auto result = torch::stable::detail::to<torch::stable::Tensor>(stack[0]);
  const float* twice = static_cast<const float*>(result.const_data_ptr());
  std::printf("%g %g %g\\n", twice[0], twice[1], twice[2]);
}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the example of the documentation, from which this process imports."""
    directory = tmp_path_factory.mktemp("project")
    example = re.search(r"^```cpp\n(.*?)^```$", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    (directory / "twice_ops.py").write_text(f"TEXT = {example[1]!r}\n{BUILDERS}")
    with importable(directory, "twice_ops"), env.scope(ACCEL_CACHE_DIR=str(directory / "cache")):
        yield directory


@pytest.fixture(scope="module")
def library(project: Path) -> str:
    """The file of the op ``twice`` with the namespace ``acme``."""
    assert main(["twice_ops:TwiceBuilder", "--namespace", "acme"]) == 0
    (entry,) = Cache(project / "cache").entries()
    return str(entry.artifact)


@needs_gxx
def test_a_program_without_python_calls_the_op(library: str, tmp_path: Path) -> None:
    torch = torch_install()
    (tmp_path / "program.cpp").write_text(PROGRAM)
    libraries = [f"-L{torch.library_dir}", f"-Wl,-rpath,{torch.library_dir}", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    flags = ["-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000", "-isystem", str(torch.include_dir)]
    run("g++", *flags, "program.cpp", "-Wl,--no-as-needed", *libraries, "-o", "program", cwd=tmp_path)
    assert run(tmp_path / "program", library, cwd=tmp_path) == "2 4 6\n"


@pytest.mark.slow
def test_an_aotinductor_package_calls_the_op(library: str, tmp_path: Path) -> None:
    for what in ("export", "use"):
        arguments = (ROOT / "tests" / "support" / "export_acme_model.py", what, library, tmp_path / "model.pt2")
        output_of(*arguments, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"))


@pytest.mark.parametrize(
    ("op", "namespace", "message"),
    [
        ("twice_ops:TorchBuilder", "acme", "its binding is Binding.TORCH. Declare BINDING = Binding.STABLE"),
        ("twice_ops:TwiceBuilder", "no-name", "The namespace is 'no-name'"),
        ("twice_ops:TwiceBuilder", "aten", "The namespace aten cannot be registered"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_namespace_that_cannot_be_given_is_an_error(
    capsys: pytest.CaptureFixture[str], op: str, namespace: str, message: str
) -> None:
    assert main([op, "--namespace", namespace, "--json"]) == 1
    assert message in json.loads(capsys.readouterr().out)["ops"][0]["message"]


@pytest.mark.parametrize("arguments", [["a", "b"], ["--all"], ["a", "--precompile"]])
def test_only_one_op_gets_a_namespace(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*arguments, "--namespace", "acme"])
    assert "--namespace needs one op" in capsys.readouterr().err
