"""The builders of the CPU: a view of the catalog."""

from op_builder.catalog.registry import device_view

__getattr__, __dir__, __path__, __file__ = device_view(__name__)
