"""The current device and the package of its builders. No other module here imports :mod:`accelerator`.

The imports are in functions, because ``accelerator`` imports the catalog, and because importing must detect nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator


def current_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this process; the first call detects it."""
    from accelerator import get_accelerator

    return get_accelerator()


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
