"""Fixtures over :mod:`tests.support.machines`."""

from __future__ import annotations

from tests.support.machines import fake_memory, fresh, host_files, machine, plain_environment, plugin_site

__all__ = ["fake_memory", "fresh", "host_files", "machine", "plain_environment", "plugin_site"]
