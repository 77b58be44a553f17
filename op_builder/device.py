"""The current device and the package of its builders. No other module here imports :mod:`accelerator`.

The imports are in functions, because importing must detect nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from op_builder.load.load import load
from op_builder.spec import OUR_DEVICES, OUR_PACKAGES

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator
    from op_builder.cache.store import Cache
    from op_builder.spec import OpFamily


def current_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this process; the first call detects it."""
    try:
        from accelerator import get_accelerator
    except ImportError as error:
        from op_builder.errors import LoadError
        from op_builder.system.foreign_packages import foreign_packages

        for found in foreign_packages():
            raise LoadError(found.reason, found.remedy) from error
        raise

    return get_accelerator()


def current_package() -> str:
    """The package of the current device's builders: this library's, even if the accelerator is DeepSpeed's object."""
    accelerator = current_accelerator()
    package = accelerator.op_builder_dir()
    if not package.startswith("deepspeed."):
        return package
    device = accelerator.device_name().partition(":")[0]
    return f"op_builder.{device if device in OUR_DEVICES else 'host'}"


def load_for_device(family: OpFamily, cache: Cache) -> Any:
    """Load this project's op for the current device, or the device's own op of that builder.

    Raises:
        IncompatibleOpError: the op cannot be built or loaded here.
    """
    package = current_package()
    if package in OUR_PACKAGES:
        return load(family.spec_for(package.rpartition(".")[2]), cache)
    return current_accelerator().create_op_builder(family.builder).load()


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
