"""The engines of async_io that work here."""

from __future__ import annotations

from op_builder.cpu import AsyncIOBuilder

ENGINES = [name for name, refusal in AsyncIOBuilder().load().engine_reasons().items() if refusal is None]
