"""Running all checks on one accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerator.errors import AcceleratorUnavailableError
from accelerator.testing.checks import CHECKS
from accelerator.testing.model import Ability, ConformanceReport


def require_device(accelerator: Any) -> None:
    """Raise unless there is a device to check.

    Raises:
        AcceleratorUnavailableError: ``is_available()`` is False.
    """
    available = getattr(accelerator, "is_available", None)
    if available is not None and not available():  # without the method, the check of the structure says so
        raise AcceleratorUnavailableError(
            f"{type(accelerator).__name__} says that no device is available; the kit needs a device to check.",
            "Run it on a machine that has one, with its driver.",
        )


def check_conformance(accelerator: Any, lacks: Mapping[Ability, str] | None = None) -> ConformanceReport:
    """Run every check.

    Args:
        accelerator: the object under test.
        lacks: what this set-up lacks, with the reason; checks that need it do not apply. A device
            should lack nothing; a fake one may.

    Raises:
        AcceleratorUnavailableError: there is no device.
    """
    require_device(accelerator)
    name = f"{type(accelerator).__module__}.{type(accelerator).__qualname__}"
    return ConformanceReport(name, tuple(check.run(accelerator, lacks) for check in CHECKS))
