"""The builders of Intel XPU devices, also to run on CPU tensors through a SYCL CPU device: a view of the catalog."""

from __future__ import annotations

from op_builder.builder.base import OpBuilder
from op_builder.catalog.registry import find_builder
from op_builder.catalog.table import builder_names

__all__ = builder_names("xpu")


def __getattr__(name: str) -> type[OpBuilder]:
    # An op that this device lacks has a builder too, which says so.
    if name.endswith("Builder"):
        return find_builder(name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
