"""Errors of accelerators and of the launcher, all subclasses of :class:`op_builder.errors.AccelError`."""

from __future__ import annotations

from op_builder.errors import AccelError


class AcceleratorSelectionError(AccelError, ValueError):
    """The requested accelerator cannot be used: the name is unknown, or its package or device is missing."""


class AcceleratorUnavailableError(AcceleratorSelectionError):
    """An accelerator was constructed or used without the package or the device that it needs."""


class InvalidAcceleratorError(AccelError, TypeError):
    """``set_accelerator`` got an object that is not an accelerator; the message lists the reasons."""


class UnsupportedFeatureError(AccelError, NotImplementedError):
    """The device, or the installed version of its package, lacks the feature."""


class UnsupportedBackendError(AccelError, ValueError):
    """torch.compile has no backend with that name."""


class DeviceIndexError(AccelError, IndexError):
    """The device index is out of range."""


class NotHostMemoryError(AccelError, ValueError):
    """Page-locked memory was requested on a device, not on the host."""


class EventNotRecordedError(AccelError, RuntimeError):
    """``elapsed_time()`` was called on an event that was never recorded."""


class LaunchError(AccelError, ValueError):
    """A launch is not possible as requested."""


class BindingError(LaunchError):
    """Ranks cannot be bound to cores as requested."""


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
