"""The errors of the launcher, members of the family in :mod:`op_builder.errors`."""

from __future__ import annotations

from op_builder.errors import AccelError


class LaunchError(AccelError, ValueError):
    """A launch is not possible as requested."""


class BindingError(LaunchError):
    """Ranks cannot be bound to cores as requested."""
