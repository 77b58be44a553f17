"""The engines of async_io that work here."""

from __future__ import annotations

from op_builder.cpu import AsyncIOBuilder
from op_builder.system import storage_engines

ENGINES = [name for name in storage_engines.ENGINES if name not in AsyncIOBuilder().load().rejected_engines()]
