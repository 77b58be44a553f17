"""The accelerator of this process: chosen once, on first use."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from accelerator.detection import rejection_reasons
from accelerator.errors import AcceleratorSelectionError, InvalidAcceleratorError
from accelerator.selection import SUPPORTED_ACCELERATOR_LIST, choose, is_registered
from op_builder import env

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator

__all__ = [
    "SUPPORTED_ACCELERATOR_LIST",
    "get_accelerator",
    "is_current_accelerator_supported",
    "set_accelerator",
]

# A log record, not a Python warning: a missing accelerator is no fault of the caller and must not raise under
# "-W error". The package installs no NullHandler, so Python writes warnings to stderr if logging is not configured.
_logger = logging.getLogger("accelerator")

# Set in each rank by torch's launcher and ours, Open MPI, MPICH and Intel MPI, Slurm.
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")

# No lock: a detection imports other packages, and such an import may wait for a thread that needs the accelerator.
# Several threads may detect at once. The first result is kept, since dict.setdefault() is atomic.
_current: dict[str, DeepSpeedAccelerator] = {}
_KEY = "accelerator"
_thread = threading.local()  # is_choosing: this thread is inside a detection


def get_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this process; the first call chooses it, later ones return the same object.

    Threads that make the first call at the same time get the same object, too.

    ACCEL_ACCELERATOR or DS_ACCELERATOR selects it by name. Otherwise, it is the first device that detection finds, or
    the CPU, with a log record. ``python -m accelerator.report`` shows why.

    Raises:
        AcceleratorSelectionError: (a ValueError) the override is not a known name, or the package
            or device it needs is missing. The name cuda is accepted without a device, for op builders, reports and
            prebuilds; then the methods that need the device raise the error.
    """
    if _KEY in _current:
        return _current[_KEY]
    if getattr(_thread, "is_choosing", False):
        raise AcceleratorSelectionError(
            "get_accelerator() was called while a package that provides a device is imported.",
            "Call get_accelerator() in functions of that package, not at import.",
        )
    _thread.is_choosing = True
    try:
        selection = choose()
    finally:
        _thread.is_choosing = False
    if _KEY in _current:  # another thread was first, or a plug-in called set_accelerator()
        return _current[_KEY]
    accelerator = selection.require()
    kept = _current.setdefault(_KEY, accelerator)
    if kept is accelerator and selection.requested is None and selection.name == "cpu":
        _logger.log(
            _fallback_level(),
            "No accelerator was detected; using the CPU. "
            "'python -m accelerator.report' shows why; set ACCEL_ACCELERATOR=cpu to choose the CPU silently.",
        )
    return kept


def _fallback_level() -> int:
    """The level of the message about the CPU: a warning only where torch supports a device, and once per job."""
    import torch

    supports_device = any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))
    variables = env.child_environment()
    ranks = [variables[name] for name in _RANK_VARIABLES if variables.get(name)]
    return logging.WARNING if supports_device and ranks[:1] in ([], ["0"]) else logging.INFO


def set_accelerator(accelerator: DeepSpeedAccelerator) -> DeepSpeedAccelerator:
    """Make an object the accelerator of this process and return it.

    The object must have the members of :class:`DeepSpeedAccelerator`; its base classes do not matter.

    Raises:
        InvalidAcceleratorError: (a TypeError) members are missing or of the wrong kind; the message lists the first
            of them. The accelerator stays unchanged.
    """
    reasons = rejection_reasons(accelerator)
    if reasons:
        raise InvalidAcceleratorError(
            f"set_accelerator() got {type(accelerator).__name__}, which is not an accelerator: {'; '.join(reasons)}.",
            "Pass an instance of a subclass of accelerator.abstract_accelerator.DeepSpeedAccelerator.",
        )
    _current[_KEY] = accelerator
    return accelerator


def is_current_accelerator_supported() -> bool:
    """Whether the current accelerator is a built-in one or a registered plug-in.

    It is False only for an object that was passed to :func:`set_accelerator`.
    """
    accelerator = get_accelerator()
    name = accelerator.device_name().partition(":")[0]
    return name in SUPPORTED_ACCELERATOR_LIST or is_registered(type(accelerator))
