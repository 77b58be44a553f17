"""Fixtures over :mod:`tests.support.small_ops`."""

from __future__ import annotations

from tests.support.small_ops import cache, small

__all__ = ["cache", "small"]
