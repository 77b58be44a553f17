"""``ALL_OPS``: {op name: builder instance} for the current accelerator, created on first access."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder

ALL_OPS: dict[str, OpBuilder]


@cache
def _builders(package: str) -> dict[str, OpBuilder]:
    from op_builder.catalog.registry import all_builders

    return all_builders(package)


def __getattr__(name: str) -> Any:
    if name == "ALL_OPS":
        from op_builder.device import current_package

        return _builders(current_package())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
