"""Ops by the names that users type."""

from __future__ import annotations

import importlib
import os
import sys

from op_builder.builder.base import OpBuilder, is_builder
from op_builder.catalog.registry import all_specs, device_package, find_builder, registered_packages
from op_builder.device import current_accelerator, current_package
from op_builder.errors import AccelError, UnknownOpError
from op_builder.messages import did_you_mean
from op_builder.spec import OpSpec

_SYCL_PACKAGE = "op_builder.xpu"


def current_builder(class_name: str) -> type[OpBuilder]:
    """The builder class of that name for the current device, which the first call detects.

    Raises:
        UnknownOpError: no op has that builder.
    """
    accelerator, package = current_accelerator(), current_package()
    is_own = accelerator.op_builder_dir() == package
    return accelerator.get_op_builder(class_name) if is_own else find_builder(class_name, package)


def find_op(name: str, package: str | None = None) -> OpSpec:
    """An op, by the op's name, the builder's name, or ``package.module:Builder``.

    An op that the device lacks is also found if it has SYCL kernels, which work on CPU tensors.

    Args:
        package: the device's package of builders; the current device's by default.

    Raises:
        UnknownOpError: no such op, module or builder exists; lists the names.
    """
    if ":" in name:
        return _spec_of(name)
    package = _package() if package is None else package
    specs = all_specs(package)
    named = [spec for spec in specs if name in (spec.name, spec.builder)]
    if not named or named[0].unavailable is not None:
        classes = device_package(_SYCL_PACKAGE).classes
        sycl = [cls().spec() for class_name, cls in classes.items() if name in (cls.NAME, class_name)]
        note = f"the SYCL kernels of {_SYCL_PACKAGE}, which also accept CPU tensors; {package} has none"
        named = [*(spec._replace(summary=f"{spec.summary} ({note})") for spec in sycl), *named]
    if named:
        return named[0]
    names = [spec.name for spec in specs]
    reasons = [other.reason for other in registered_packages(package)]
    raise UnknownOpError(
        " ".join(filter(None, [f"Unknown op {name!r}.", *reasons])),
        f"{did_you_mean(name, names)} The ops are: {', '.join(names)}. "
        "Pass package.module:Builder for an op that no package registers.".lstrip(),
    )


def _spec_of(name: str) -> OpSpec:
    module_name, _, class_name = name.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:  # python -m has it there
        sys.path.append(here)  # last: its modules may hide others
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module may raise anything
        raise UnknownOpError(
            f"{name!r}: the module {module_name!r} cannot be imported: {type(error).__name__}: {error}.",
            "Use a name that Python can import from the current directory, or extend PYTHONPATH.",
        ) from error
    found = getattr(module, class_name, None)
    if not is_builder(found):
        what = "is not an OpBuilder" if hasattr(module, class_name) else "does not exist"
        builders = filter(is_builder, vars(module).values())
        own = [builder.__name__ for builder in builders if builder.__module__ == module_name]
        names = ", ".join(dict.fromkeys(own))
        remedy = f"Use one of {names}." if names else f"Name the module that defines it; {module_name} has no builders."
        raise UnknownOpError(f"{name!r}: {class_name!r} {what}.", remedy)
    try:
        return found().spec()
    except Exception as error:
        raise UnknownOpError(
            f"{name!r}: the builder cannot be created: {type(error).__name__}: {error}.",
            "Give it a sources() method and an __init__ that needs no arguments.",
        ) from error


def _package() -> str:
    try:
        return current_package()
    except AccelError:  # no accelerator can be used
        return "op_builder.host"
