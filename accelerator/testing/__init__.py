"""The conformance kit: does an object implement the whole contract of an accelerator?

A vendor calls :func:`check_conformance`, or ``check.require(accelerator)`` for each of ``CHECKS``. A check is a method
whose docstring states in one sentence what it proves. There is no timeout here; ``python -m accelerator.conformance``
runs the checks in a child process and stops it after a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerator.testing.devices import DeviceChecks, GraphChecks, IdentityChecks, RandomNumberChecks, StreamChecks
from accelerator.testing.environment import BuilderChecks, EnvironmentChecks
from accelerator.testing.model import Check, CheckResult, ConformanceError, ConformanceReport, require_device
from accelerator.testing.tensors import MemoryChecks, NumberTypeChecks, PinnedMemoryChecks, TensorChecks

__all__ = ["CHECKS", "Check", "CheckResult", "ConformanceError", "ConformanceReport", "check_conformance"]

_CLASSES = (
    *(IdentityChecks, DeviceChecks, RandomNumberChecks, StreamChecks, MemoryChecks),
    *(NumberTypeChecks, TensorChecks, PinnedMemoryChecks, GraphChecks, BuilderChecks, EnvironmentChecks),
)
CHECKS: tuple[Check, ...] = tuple(check for checks in _CLASSES for check in checks.collect())
"""Every check of the kit, in the order in which they run."""


def check_conformance(accelerator: Any, without: Mapping[str, str] | None = None) -> ConformanceReport:
    """Run every check.

    Args:
        accelerator: the object under test.
        without: names of checks or groups that do not apply to this set-up, with the reason. Only a fake device
            should need it.

    Raises:
        AcceleratorUnavailableError: no device is available.
    """
    require_device(accelerator)
    name = f"{type(accelerator).__module__}.{type(accelerator).__qualname__}"
    return ConformanceReport(name, tuple(check.run(accelerator, without) for check in CHECKS))
