from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.builder import kernel_path_hooks, sycl_kernel_include, sycl_kernel_path
from op_builder.errors import SourceNotFoundError
from tests.support.foreign_package import output_of

HERE = Path(__file__).parent


def test_paths_are_relative_to_the_module_that_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    path, include = kernel_path_hooks("acme")
    assert (path.__name__, include.__name__) == ("acme_kernel_path", "acme_kernel_include")
    paths = ["test_kernel_paths.py", "../builder/test_kernel_paths.py", __file__]
    assert [*map(path, paths), *map(sycl_kernel_path, paths)] == [__file__] * 6
    assert [include("../builder"), sycl_kernel_include(".")] == [str(HERE)] * 2


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
    assert str((HERE / path).resolve()) in message
    assert "package data" in message


def test_at_a_prompt_paths_start_at_the_current_directory() -> None:
    code = "import os; os.chdir('/usr'); from op_builder.builder import sycl_kernel_include as i; print(i('lib'))"
    assert output_of("-c", code) == "/usr/lib\n"
