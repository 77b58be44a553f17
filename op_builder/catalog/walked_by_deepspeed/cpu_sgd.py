"""One op of a device; see ``op_builder.catalog.registry.op_view``."""

from op_builder.catalog.registry import op_view

globals().update(op_view(__name__))
