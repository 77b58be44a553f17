"""The op ``pin_memory``: tensors in page-locked host memory."""

from __future__ import annotations

from op_builder.ops.declare import host_recipe, native_spec
from op_builder.ops.io.locked_memory import LockedTensors
from op_builder.spec import OpFamily


class PinMemoryModule(LockedTensors):
    """The module that ``PinMemoryBuilder().load()`` returns."""

    def pin_handle(self) -> LockedTensors:
        """An object with the functions on locked tensors, as :class:`op_builder.ops.io.aio_handle.Handle` has them."""
        return LockedTensors(self._ops)


OP = OpFamily(
    "pin_memory",
    "PinMemoryBuilder",
    "page-locked host memory",
    host=native_spec(host_recipe("pin_memory", ("memory/pages.cpp",)), PinMemoryModule),
)
