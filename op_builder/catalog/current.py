"""The builders of the current device, which the first call detects."""

from __future__ import annotations

from op_builder.builder.base import OpBuilder
from op_builder.catalog.registry import find_builder
from op_builder.device import current_accelerator, current_package


def current_builder(class_name: str) -> type[OpBuilder]:
    """The builder class of that name for the current device.

    Raises:
        UnknownOpError: no op has that builder.
    """
    accelerator, package = current_accelerator(), current_package()
    is_own = accelerator.op_builder_dir() == package
    return accelerator.get_op_builder(class_name) if is_own else find_builder(class_name, package)
