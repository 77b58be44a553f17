"""The errors of choosing an accelerator, members of the family in :mod:`op_builder.errors`."""

from __future__ import annotations

from op_builder.errors import AccelError


class AcceleratorSelectionError(AccelError, ValueError):
    """The requested accelerator cannot be had: an unknown name, or its package or device is missing."""


class AcceleratorUnavailableError(AcceleratorSelectionError):
    """An accelerator class was asked for an object without the package it needs."""


class BrokenPackageError(AccelError, ImportError):
    """A vendor's package is there, and importing it failed; the message is what it raised."""


class InvalidAcceleratorError(AccelError, TypeError):
    """The object given to ``set_accelerator`` is no accelerator; the message lists what is wrong."""


class UnsupportedFeatureError(AccelError, NotImplementedError):
    """The device, or the installed version of its package, lacks what was asked for."""


class UnsupportedBackendError(AccelError, ValueError):
    """Torch knows no ``torch.compile`` backend of that name."""


class DeviceIndexError(AccelError, IndexError):
    """There is no device of that index."""


class EventNotRecordedError(AccelError, RuntimeError):
    """A time was asked of an event that was never recorded."""


def describe(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, BrokenPackageError):
        return error.message
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
