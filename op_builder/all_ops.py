"""``ALL_OPS``: {op name: builder instance} for the current accelerator, made when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_builder.base import OpBuilder

ALL_OPS: dict[str, OpBuilder]


def __getattr__(name: str) -> Any:
    if name == "ALL_OPS":
        from accelerator import get_accelerator
        from op_builder.registry import all_builders

        return all_builders(get_accelerator().op_builder_dir())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
