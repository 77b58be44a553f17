"""Fixtures of the launcher's tests."""

from __future__ import annotations

from tests.support.machines import host_files, plain_environment

__all__ = ["host_files", "plain_environment"]
