"""The builders of one device, ``op_builder.cpu.builders`` for example; see ``registry.device_view``."""

from op_builder.catalog.registry import builders_in

globals().update(builders_in(__name__.rpartition(".")[0]))
