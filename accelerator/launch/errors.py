"""The errors of the launcher, members of the family in :mod:`op_builder.errors`."""

from __future__ import annotations

from op_builder.errors import AccelError


class LaunchError(AccelError, ValueError):
    """What was asked of the launcher cannot be done; nothing was started."""


class HostfileError(LaunchError):
    """A line of a hostfile, or a choice among its hosts, cannot be understood."""


class BindingError(LaunchError):
    """Ranks cannot be bound to cores as asked."""
