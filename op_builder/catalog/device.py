"""The one door to :mod:`accelerator`: which device this is, and the package of its builders.

``accelerator`` itself asks the catalog for builders, and importing either detects nothing: so the imports are in
functions.
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
    """The accelerator that the environment names, else the detected one; and the package of its builders.

    For builds, which need no device: an accelerator that is named is not detected.

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
