from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from op_builder.builder import sycl_kernel_include, sycl_kernel_path
from op_builder.errors import SourceNotFoundError
from tests.support.foreign_package import importable, load_module, run_python, write_package

FILES = {
    "ops/builders.py": """
from op_builder import Binding, CPUOpBuilder
from op_builder.builder import kernel_path_hooks, sycl_kernel_include, sycl_kernel_path

acme_kernel_path, acme_kernel_include = kernel_path_hooks("acme")


class AcmeBuilder(CPUOpBuilder):
    NAME = "acme"
    BINDING = Binding.STABLE

    def sources(self):
        return [acme_kernel_path("kernels/scale.cpp")]

    def include_paths(self):
        return ["csrc", acme_kernel_include("kernels/include")]


def several(paths):
    return list(map(sycl_kernel_path, paths))
""",
    "ops/kernels/scale.cpp": "",
    "ops/kernels/include/amount.h": "",
    "shared/other.cpp": "",
}


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[ModuleType]:
    write_package(tmp_path, "acme_hooks", FILES)
    with importable(tmp_path, "acme_hooks"):
        yield load_module("acme_hooks.ops.builders")


def test_paths_are_relative_to_the_module_that_calls(
    acme: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    builder = acme.AcmeBuilder()
    here = tmp_path / "acme_hooks" / "ops" / "kernels"
    assert builder.sources() == [str(here / "scale.cpp")]
    assert [source.label for source in builder.plan().sources] == ["kernels/scale.cpp"]
    assert builder.include_paths() == ["csrc", str(here / "include")]
    other = str(tmp_path / "acme_hooks" / "shared" / "other.cpp")
    assert acme.several(["../shared/other.cpp", other]) == [other, other]


@pytest.mark.parametrize(
    ("hook", "path", "found"),
    [
        (sycl_kernel_path, "kernels/absent.cpp", "does not exist"),
        (sycl_kernel_path, "/absent.cpp", "/absent.cpp does not exist"),
        (sycl_kernel_path, "../builder", "is not a file"),
        (sycl_kernel_include, "absent", "does not exist"),
        (sycl_kernel_include, "test_kernel_paths.py", "is not a directory"),
    ],
)
def test_a_missing_file_is_an_error_with_its_path(hook: object, path: str, found: str) -> None:
    with pytest.raises(SourceNotFoundError, match=found) as caught:
        hook(path)  # type: ignore[operator]
    message = str(caught.value)
    assert f"sycl_kernel_{'path' if hook is sycl_kernel_path else 'include'}({path!r})" in message
    assert str((Path(__file__).parent / path).resolve()) in message
    assert "package data" in message


def test_at_a_prompt_paths_start_at_the_current_directory(tmp_path: Path) -> None:
    code = "import os; os.chdir('/usr'); from op_builder.builder import sycl_kernel_include as i; print(i('lib'))"
    done = run_python(code, tmp_path)
    assert done.stdout == "/usr/lib\n", done.stderr
