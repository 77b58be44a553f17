"""The object that ``PackBitsBuilder().load()`` returns."""

from __future__ import annotations

from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import whole_number
from op_builder.ops.declare import sycl_spec
from op_builder.ops.functional.device_tensors import call, require_plain
from op_builder.spec import OpFamily

_BIT_ORDERS = ("little", "big")


class PackBitsModule:
    """Packs elements into bits and unpacks them, as :func:`numpy.packbits`; invalid arguments are OpArgumentErrors."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def packbits(self, x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
        """Pack the elements of the last dimension, each to one bit: ``numpy.packbits(x, axis=-1, bitorder=bitorder)``.

        Args:
            x: uint8 or bool, of shape (..., n), with at least one dimension. Elements other than 0 are ones.
            bitorder: ``big``: a byte's first element is its highest bit; ``little``: its lowest.

        Returns:
            A uint8 tensor of shape (..., (n + 7) // 8) on x's device, with zeros at the end of a row's last byte.
        """
        big = _is_big(bitorder)
        require_plain("x", x)
        if not x.dim():
            raise OpArgumentError("x has no dimension.", "Pass at least one, for example x.reshape(1).")
        columns = x.shape[-1]
        packed = torch.empty((*x.shape[:-1], (columns + 7) // 8), dtype=torch.uint8, device=x.device)
        call(self.ops.pack, x.contiguous(), packed, max(columns, 1), big)
        return packed

    def unpackbits(self, packed: torch.Tensor, count: int | None = None, bitorder: str = "big") -> torch.Tensor:
        """The reverse of :meth:`packbits`, ``numpy.unpackbits(packed, axis=-1, count=count, bitorder=bitorder)``.

        Args:
            packed: uint8, of shape (..., m), with at least one dimension.
            count: elements of each row, in (8 * (m - 1), 8 * m]; all 8 * m when not given.
            bitorder: the bit order of ``packed``.

        Returns:
            A uint8 tensor of zeros and ones, of shape (..., count), on packed's device.
        """
        big = _is_big(bitorder)
        require_plain("packed", packed)
        if not packed.dim():
            raise OpArgumentError("packed has 0 dimensions.", "Pass at least one, for example packed.reshape(1).")
        row_bytes = packed.shape[-1]
        remedy = f"Pass a count of {8 * row_bytes - 7 if row_bytes else 0} to {8 * row_bytes}."
        columns = 8 * row_bytes if count is None else whole_number("count", count, remedy)
        if columns < 0 or (columns + 7) // 8 != row_bytes:
            raise OpArgumentError(f"count is {count}, which does not fit {row_bytes} bytes per row.", remedy)
        bytes_ = torch.empty((*packed.shape[:-1], columns), dtype=torch.uint8, device=packed.device)
        call(self.ops.unpack, packed.contiguous(), bytes_, max(columns, 1), big)
        return bytes_


def _is_big(bitorder: str) -> bool:
    if bitorder not in _BIT_ORDERS:
        raise OpArgumentError(f"bitorder is {bitorder!r}.", f"Pass one of: {', '.join(_BIT_ORDERS)}.")
    return bitorder == "big"


OP = OpFamily("pack_bits", "PackBitsBuilder", "bit packing and unpacking", xpu=sycl_spec("pack_bits", PackBitsModule))
