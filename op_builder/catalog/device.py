"""The current device and the package of its builders. No other module here imports :mod:`accelerator`.

The imports are in functions, because ``accelerator`` imports the catalog, and because importing must detect nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator
    from op_builder.builder.base import OpBuilder


def current_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this process; the first call detects it."""
    from accelerator import get_accelerator

    return get_accelerator()


def current_package() -> str:
    """The package of the current device's builders: this library's, even if the accelerator is DeepSpeed's object."""
    accelerator = current_accelerator()
    package = accelerator.op_builder_dir()
    if not package.startswith("deepspeed."):
        return package
    device = accelerator.device_name().partition(":")[0]
    return f"op_builder.{device if device in ('cpu', 'cuda', 'xpu') else 'host'}"


def current_builder(class_name: str) -> type[OpBuilder]:
    """The builder class of that name for the current device.

    Raises:
        UnknownOpError: no op has that builder.
    """
    from op_builder.catalog.registry import find_builder

    accelerator, package = current_accelerator(), current_package()
    is_own = accelerator.op_builder_dir() == package
    return accelerator.get_op_builder(class_name) if is_own else find_builder(class_name, package)


def create_builder(class_name: str) -> OpBuilder:
    """An instance of that class, made by the accelerator unless that is DeepSpeed's; raises like the other."""
    accelerator = current_accelerator()
    is_own = accelerator.op_builder_dir() == current_package()
    return accelerator.create_op_builder(class_name) if is_own else current_builder(class_name)()


def requested_package() -> tuple[str, str]:
    """The name of the accelerator to build for, and the package of its builders.

    An accelerator that the environment names is not detected, because a build needs no device.

    Raises:
        AcceleratorSelectionError: the name is unknown, or needs a package that is not installed.
    """
    from accelerator.selection import builder_package

    return builder_package()


def is_accelerator_named() -> bool:
    """Whether the environment names an accelerator."""
    from accelerator.selection import requested_name

    return requested_name() is not None


def accelerator_facts(accelerator: DeepSpeedAccelerator) -> dict[str, Any]:
    """What the report shows of an accelerator."""
    from accelerator import report

    return report.accelerator_facts(accelerator)
