"""The accelerator of this process: chosen once, on first use."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from accelerator.detection import structural_faults
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

_current: DeepSpeedAccelerator | None = None
_is_choosing = False
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock, _is_choosing
    _lock, _is_choosing = threading.RLock(), False  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def get_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this process; the first call chooses it, later ones return the same object.

    ACCEL_ACCELERATOR or DS_ACCELERATOR selects it by name. Otherwise, it is the first device that detection finds, or
    the CPU, with a log record. ``python -m accelerator.report`` shows why.

    Raises:
        AcceleratorSelectionError: (a ValueError) the override is not a known name, or the package
            or device it needs is missing.
    """
    global _current, _is_choosing
    if _current is not None:
        return _current
    with _lock:
        if _current is not None:  # another thread has chosen it
            return _current
        if _is_choosing:
            raise AcceleratorSelectionError(
                "get_accelerator() was called while a package that provides a device is imported.",
                "Call get_accelerator() in functions of that package, not at import.",
            )
        _is_choosing = True
        try:
            selection = choose()
        finally:
            _is_choosing = False
        if _current is not None:  # a plug-in called set_accelerator()
            return _current
        accelerator = selection.require()
        if selection.requested is None and selection.name == "cpu":
            _logger.log(
                _fallback_level(),
                "No accelerator was detected; using the CPU. "
                "'python -m accelerator.report' shows why; set ACCEL_ACCELERATOR=cpu to choose the CPU silently.",
            )
        _current = accelerator
        return accelerator


def _fallback_level() -> int:
    """The level of the message about the CPU: a warning only where torch supports a device, and once per job."""
    import torch  # not at the top: importing this module must not import torch

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
    global _current
    faults = structural_faults(accelerator)
    if faults:
        raise InvalidAcceleratorError(
            f"set_accelerator() got {type(accelerator).__name__}, which is not an accelerator: {'; '.join(faults)}.",
            "Pass an instance of a subclass of accelerator.abstract_accelerator.DeepSpeedAccelerator.",
        )
    with _lock:
        _current = accelerator
    return accelerator


def is_current_accelerator_supported() -> bool:
    """Whether the current accelerator is a built-in one or a registered plug-in.

    It is False only for an object that was passed to :func:`set_accelerator`.
    """
    accelerator = get_accelerator()
    name = accelerator.device_name().partition(":")[0]
    return name in SUPPORTED_ACCELERATOR_LIST or is_registered(type(accelerator))
