"""Op builders, environment variables, visible devices and the compile backend."""

from __future__ import annotations

import subprocess

import torch
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

from accelerator.testing.model import Checks, does_not_apply, expect, expect_equal, expect_type, fail
from op_builder import OpBuilder, env
from op_builder.catalog.registry import device_package
from op_builder.catalog.index import BUILDERS, families
from op_builder.catalog.builders import UnavailableOpBuilder
from op_builder.system.interpreter import isolated_command

_KNOWN, _MISSPELLED = "CPUAdamBuilder", "CPUAdmBuilder"
_CHILD_TIMEOUT_S = 300

# Without a visible device, the constructor may raise, which counts as no device.
_COUNT_DEVICES = """
import functools, importlib
from accelerator.errors import AcceleratorUnavailableError
cls = functools.reduce(getattr, {names!r}.split("."), importlib.import_module({module!r}))
try:
    accelerator = cls()
    print("devices:", accelerator.device_count() if accelerator.is_available() else 0)
except AcceleratorUnavailableError:
    print("devices: 0")
"""


class BuilderChecks(Checks):
    group = "op builders"

    def builder_package_imports(self) -> str:
        """op_builder_dir() names a package that imports, every module in it, and each builder class constructs."""
        name = self.accelerator.op_builder_dir()
        expect_type("op_builder_dir()", name, str)
        package = device_package(name)
        expect(not package.broken, "modules that import", package.problems)
        for class_name, cls in package.classes.items():
            builder = cls()
            expect(bool(builder.name), f"a name of {class_name}()", builder.name)
        return f"{name}, {len(package.classes)} builders"

    def builders_are_found_by_name(self) -> None:
        """get_op_builder() returns a class and create_op_builder() an instance of it, for every op of the interface."""
        for op in families():
            cls = self.accelerator.get_op_builder(op.builder)
            expect(isinstance(cls, type) and issubclass(cls, OpBuilder), f"a builder class for {op.builder}", cls)
            builder = self.accelerator.create_op_builder(op.builder)
            expect(isinstance(builder, cls), f"create_op_builder({op.builder!r}) to be a {cls.__name__}", builder)
            expect_equal("name of the builder", builder.name, op.name)

    def unknown_builder_is_an_error(self) -> None:
        """A misspelled builder name raises an error that suggests the right one."""
        for method in ("create_op_builder", "get_op_builder"):
            try:
                found = getattr(self.accelerator, method)(_MISSPELLED)
            except Exception as error:
                expect(_KNOWN in str(error), f"{method}({_MISSPELLED!r}) to suggest {_KNOWN}", str(error))
            else:
                fail(f"an error from {method}({_MISSPELLED!r})", repr(found))

    def missing_op_has_a_builder_that_says_so(self) -> str:
        """A known op that the device lacks has a builder whose is_compatible() is False and whose load() raises."""
        names = BUILDERS
        missing = [name for name in names if issubclass(self.accelerator.get_op_builder(name), UnavailableOpBuilder)]
        if not missing:
            does_not_apply("the device has every op of the interface")
        for name in missing:
            builder = self.accelerator.create_op_builder(name)
            expect_equal(f"{name}().is_compatible()", builder.is_compatible(), False)
            try:
                builder.load()
            except Exception as error:
                expect(bool(str(error)), f"a reason from {name}().load()", repr(error))
            else:
                fail(f"an error from {name}().load()", "none")
        return ", ".join(missing)

    def build_extension_is_a_command(self) -> str:
        """build_extension() is a setuptools build_ext command class."""
        command = self.accelerator.build_extension()
        # torch's BuildExtension is one; with_options() of it gives a function that makes one.
        expect(callable(command), "a command class", command)
        if isinstance(command, type):
            expect(issubclass(command, build_ext), "a subclass of build_ext", command)
        return str(getattr(command, "__name__", command))


class EnvironmentChecks(Checks):
    group = "environment"

    def variable_names_are_lists(self) -> str:
        """export_envs() and visible_devices_envs() return new lists of names."""
        for name in ("export_envs", "visible_devices_envs"):
            method = getattr(self.accelerator, name)
            names = method()
            expect_type(f"{name}()", names, list)
            expect(all(isinstance(each, str) and each for each in names), f"{name}() of strings", names)
            names.append("CONFORMANCE")
            expect("CONFORMANCE" not in method(), f"a new list from each {name}()", "the same list")
        return ", ".join(self.accelerator.visible_devices_envs())

    def visible_devices_are_written(self) -> None:
        """set_visible_devices_envs() writes the ids into its variables of the mapping and changes nothing else."""
        before = env.child_environment()
        given = {"HOME": "/home/someone"}
        self.accelerator.set_visible_devices_envs(given, [1, 0])
        expected = {"HOME": "/home/someone", **dict.fromkeys(self.accelerator.visible_devices_envs(), "1,0")}
        expect_equal("the mapping", given, expected)
        expect(env.child_environment() == before, "this process's environment unchanged", "it changed")

    def visible_devices_are_honoured(self) -> str:
        """A child process sees only the devices that set_visible_devices_envs() wrote."""
        if self._ignores_indices():
            does_not_apply("set_device() accepts any number and changes nothing: no device can be hidden")
        count = self.accelerator.device_count()
        seen = self._devices_of_child([count - 1])
        expect_equal("device_count() of a child that may use one device", seen, 1)
        if count > 1:
            return f"1 of {count}"
        if self._devices_of_child([]) != 0:
            does_not_apply("the only device stays visible if the variable is empty")
        return "0 of 1"

    def _devices_of_child(self, ids: list[int]) -> int:
        cls = type(self.accelerator)
        if cls.__module__ == "__main__" or "<" in cls.__qualname__:
            does_not_apply(f"a child process cannot import {cls.__module__}.{cls.__qualname__}")
        variables = env.child_environment()
        self.accelerator.set_visible_devices_envs(variables, ids)
        command = isolated_command(_COUNT_DEVICES.format(module=cls.__module__, names=cls.__qualname__))
        child = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S)
        counts = [line.removeprefix("devices: ") for line in child.stdout.splitlines() if line.startswith("devices: ")]
        expect(len(counts) == 1, f"a child process that counts devices {ids}", f"failed: {child.stderr.strip()[-300:]}")
        return int(counts[0])

    def compile_backend_is_checked(self) -> str:
        """set_compile_backend() accepts torch's backends; another name raises ValueError and changes nothing."""
        former, known = self.accelerator.get_compile_backend(), torch.compiler.list_backends(exclude_tags=())
        expect(former in known, f"one of {', '.join(known)}", former)
        try:
            self.accelerator.set_compile_backend("eager")
            try:
                self.accelerator.set_compile_backend("no_such_backend")
            except ValueError as error:
                expect("inductor" in str(error), "the supported backends in the message", str(error))
            else:
                fail("a ValueError for an unknown backend", "none")
            expect_equal("get_compile_backend()", self.accelerator.get_compile_backend(), "eager")
        finally:
            self.accelerator.set_compile_backend(former)
        return str(former)
