"""Op builders, environment variables, visible devices and the compile backend."""

from __future__ import annotations

import functools
import importlib
import subprocess
from typing import Any

import pytest
import torch
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

from accelerator.errors import AcceleratorUnavailableError
from accelerator.testing import ignores_indices
from op_builder import OpBuilder, env
from op_builder.catalog.builders import UnavailableOpBuilder
from op_builder.catalog.index import NAMES
from op_builder.catalog.registry import device_package
from op_builder.system.interpreter import isolated_command

_CHILD_TIMEOUT_S = 300


def test_builder_package_imports(accelerator: Any) -> None:
    """op_builder_dir() names a package that imports, every module in it, and each builder class constructs."""
    name = accelerator.op_builder_dir()
    assert isinstance(name, str)
    package = device_package(name)
    assert not package.broken, package.reason
    for cls in package.classes.values():
        assert cls().name


def test_builders_are_found_by_name(accelerator: Any) -> None:
    """get_op_builder() returns a class and create_op_builder() an instance of it, for every op of the interface."""
    for name, class_name in NAMES.items():
        cls = accelerator.get_op_builder(class_name)
        assert isinstance(cls, type), name
        assert issubclass(cls, OpBuilder), name
        builder = accelerator.create_op_builder(class_name)
        assert isinstance(builder, cls)
        assert builder.name == name


def test_unknown_builder_is_an_error(accelerator: Any) -> None:
    """A misspelled builder name raises an error that suggests the right one."""
    for method in (accelerator.create_op_builder, accelerator.get_op_builder):
        with pytest.raises(Exception, match="CPUAdamBuilder"):
            method("CPUAdmBuilder")


def test_missing_op_has_a_builder_that_says_so(accelerator: Any) -> None:
    """A known op that the device lacks has a builder whose is_compatible() is False and whose load() raises."""
    names = list(NAMES.values())
    missing = [name for name in names if issubclass(accelerator.get_op_builder(name), UnavailableOpBuilder)]
    if not missing:
        pytest.skip("the device has every op of the interface")
    for name in missing:
        builder = accelerator.create_op_builder(name)
        assert builder.is_compatible() is False
        with pytest.raises(Exception, match=r"\S"):  # a reason
            builder.load()


def test_build_extension_is_a_command(accelerator: Any) -> None:
    """build_extension() is a setuptools build_ext command class."""
    command = accelerator.build_extension()
    # torch's BuildExtension is one; with_options() of it gives a function that makes one.
    assert issubclass(command, build_ext) if isinstance(command, type) else callable(command)


def test_variable_names_are_lists(accelerator: Any) -> None:
    """export_envs() and visible_devices_envs() return new lists of names."""
    for method in (accelerator.export_envs, accelerator.visible_devices_envs):
        names = method()
        assert isinstance(names, list)
        assert all(isinstance(name, str) and name for name in names)
        names.append("CONFORMANCE")
        assert "CONFORMANCE" not in method()


def test_visible_devices_are_written(accelerator: Any) -> None:
    """set_visible_devices_envs() writes the ids into its variables of the mapping and changes nothing else."""
    before = env.child_environment()
    variables = {"HOME": "/home/someone"}
    accelerator.set_visible_devices_envs(variables, [1, 0])
    assert variables == {"HOME": "/home/someone", **dict.fromkeys(accelerator.visible_devices_envs(), "1,0")}
    assert env.child_environment() == before


def test_visible_devices_are_honoured(accelerator: Any) -> None:
    """A child process sees only the devices that set_visible_devices_envs() wrote."""
    if ignores_indices(accelerator):
        pytest.skip("set_device() accepts any number and changes nothing: no device can be hidden")
    count = accelerator.device_count()
    assert _devices_of_child(accelerator, [count - 1]) == 1
    if count == 1 and _devices_of_child(accelerator, []) != 0:
        pytest.skip("the only device stays visible if the variable is empty")


def _devices_of_child(accelerator: Any, ids: list[int]) -> int:
    cls = type(accelerator)
    if cls.__module__ == "__main__" or "<" in cls.__qualname__:
        pytest.skip(f"a child process cannot import {cls.__module__}.{cls.__qualname__}")
    variables = env.child_environment()
    accelerator.set_visible_devices_envs(variables, ids)
    code = "import sys\nfrom accelerator.testing.test_environment import print_count\nprint_count(*sys.argv[1:])"
    command = isolated_command(code, cls.__module__, cls.__qualname__)
    child = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S)
    assert child.returncode == 0, child.stderr
    return int(child.stdout.split()[-1])


def print_count(module: str, qualified_name: str) -> None:
    """In a child process: print how many devices an object of that class has."""
    cls: Any = functools.reduce(getattr, qualified_name.split("."), importlib.import_module(module))
    try:
        accelerator = cls()
        count = accelerator.device_count() if accelerator.is_available() else 0
    except AcceleratorUnavailableError:  # without a visible device, the constructor may raise
        count = 0
    print(f"\n{count}")


def test_compile_backend_is_checked(accelerator: Any) -> None:
    """set_compile_backend() accepts torch's backends; another name raises ValueError and changes nothing."""
    former = accelerator.get_compile_backend()
    assert former in torch.compiler.list_backends(exclude_tags=())
    try:
        accelerator.set_compile_backend("eager")
        with pytest.raises(ValueError, match="inductor"):  # one of the supported backends
            accelerator.set_compile_backend("no_such_backend")
        assert accelerator.get_compile_backend() == "eager"
    finally:
        accelerator.set_compile_backend(former)
