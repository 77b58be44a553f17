"""Op builders of the device."""

from __future__ import annotations

from accelerator.testing.model import Subject, UnmetExpectationError, does_not_apply, expect, expect_equal, expect_type
from op_builder import OpBuilder
from op_builder.catalog.registry import device_package
from op_builder.catalog.table import OPS
from op_builder.catalog.unavailable import UnavailableOpBuilder

_KNOWN = "CPUAdamBuilder"


def builder_package_imports(subject: Subject) -> str:
    """op_builder_dir() names a package that imports, every module in it, and each builder class constructs."""
    name = subject.accelerator.op_builder_dir()
    expect_type("op_builder_dir()", name, str)
    package = device_package(name)
    expect(not package.broken, "modules that import", package.complaint)
    for class_name, cls in package.classes.items():
        builder = cls()
        expect(bool(builder.name), f"a name of {class_name}()", builder.name)
    return f"{name}, {len(package.classes)} builders"


def builders_are_found_by_name(subject: Subject) -> None:
    """get_op_builder() gives a class and create_op_builder() an object of it, for every op of the interface."""
    for op in OPS:
        cls = subject.accelerator.get_op_builder(op.builder)
        expect(isinstance(cls, type) and issubclass(cls, OpBuilder), f"a builder class for {op.builder}", cls)
        builder = subject.accelerator.create_op_builder(op.builder)
        expect(isinstance(builder, cls), f"create_op_builder({op.builder!r}) to be a {cls.__name__}", builder)
        expect_equal("name of the builder", builder.name, op.name)


def unknown_builder_is_an_error(subject: Subject) -> None:
    """A misspelt builder name raises an error that suggests the right one."""
    misspelt = _KNOWN.replace("Adam", "Adm")
    for method in ("create_op_builder", "get_op_builder"):
        try:
            found = getattr(subject.accelerator, method)(misspelt)
        except Exception as error:
            expect(_KNOWN in str(error), f"{method}({misspelt!r}) to suggest {_KNOWN}", str(error))
        else:
            raise UnmetExpectationError(f"expected an error from {method}({misspelt!r}), found {found!r}")


def missing_op_has_a_builder_that_says_so(subject: Subject) -> str:
    """A known op that the device lacks has a builder that is not compatible and refuses to load with the reason."""
    missing = [op.builder for op in OPS if _is_missing(subject, op.builder)]
    if not missing:
        does_not_apply("the device has every op of the interface")
    for name in missing:
        builder = subject.accelerator.create_op_builder(name)
        expect_equal(f"{name}().is_compatible()", builder.is_compatible(), False)
        try:
            builder.load()
        except Exception as error:
            expect(bool(str(error)), f"a reason from {name}().load()", repr(error))
        else:
            raise UnmetExpectationError(f"expected an error from {name}().load(), found none")
    return ", ".join(missing)


def _is_missing(subject: Subject, name: str) -> bool:
    return issubclass(subject.accelerator.get_op_builder(name), UnavailableOpBuilder)


def build_extension_is_a_command(subject: Subject) -> str:
    """build_extension() is a setuptools build_ext command class."""
    command = subject.accelerator.build_extension()
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    # torch's BuildExtension is one; with_options() of it gives a function that makes one.
    expect(callable(command), "a command class", command)
    if isinstance(command, type):
        expect(issubclass(command, build_ext), "a subclass of build_ext", command)
    return str(getattr(command, "__name__", command))


CHECKS = (
    builder_package_imports,
    builders_are_found_by_name,
    unknown_builder_is_an_error,
    missing_op_has_a_builder_that_says_so,
    build_extension_is_a_command,
)
