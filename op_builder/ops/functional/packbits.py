"""The op ``packbits``: pack elements into bits by SYCL kernels, and signs into bits by these or by torch."""

from __future__ import annotations

from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import bounded_int, require_memory
from op_builder.ops.declare import python_spec, sycl_spec
from op_builder.ops.functional.device_tensors import call, load_sycl, require_plain
from op_builder.spec import OpFamily

_BIT_ORDERS = ("little", "big")


class SignBitsModule:
    """Packs the signs of a tensor into bits, eight in a byte, the first in its highest bit; for 1-bit optimizers.

    It is the object that ``PackbitsBuilder().load()`` returns on devices without the SYCL kernels.
    """

    def packbits(self, tensor: torch.Tensor, size: int, rank: int = 0) -> torch.Tensor:  # noqa: ARG002
        """The signs of the first ``size`` elements: 1 for a number of at least 0. Zeros fill the last byte.

        Args:
            rank: ignored; the tensor's device counts.

        Returns:
            (size + 7) // 8 elements of uint8 on the tensor's device.
        """
        bits = torch.nn.functional.pad((_first("tensor", tensor, size) >= 0).to(torch.uint8), (0, -size % 8))
        return (bits.view(-1, 8) * _weights(tensor.device)).sum(1, dtype=torch.uint8)

    def unpackbits(self, packed: torch.Tensor, size: int, rank: int = 0) -> torch.Tensor:  # noqa: ARG002
        """The numbers that the bits of the first ``size`` bytes stand for: 1.0 and -1.0.

        Returns:
            8 * size elements of float32 on the tensor's device.
        """
        bits = _first("packed", packed, size).unsqueeze(1).bitwise_and(_weights(packed.device)).ne(0)
        return bits.reshape(-1).to(torch.float32) * 2 - 1


def _weights(device: torch.device) -> torch.Tensor:
    return torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=device)


class SyclBitsModule:
    """:class:`SignBitsModule` with SYCL kernels, which also pack any elements, as :func:`numpy.packbits` does.

    It is the object that ``PackbitsBuilder().load()`` of ``op_builder.xpu`` returns. Invalid arguments are
    OpArgumentErrors.
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def packbits(self, tensor: torch.Tensor, size: int, rank: int = 0) -> torch.Tensor:  # noqa: ARG002
        """As :meth:`SignBitsModule.packbits`."""
        return self.pack(_first("tensor", tensor, size) >= 0)

    def unpackbits(self, packed: torch.Tensor, size: int, rank: int = 0) -> torch.Tensor:  # noqa: ARG002
        """As :meth:`SignBitsModule.unpackbits`."""
        return self.unpack(_first("packed", packed, size)).to(torch.float32) * 2 - 1

    def pack(self, x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
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

    def unpack(self, packed: torch.Tensor, count: int | None = None, bitorder: str = "big") -> torch.Tensor:
        """The reverse of :meth:`pack`, ``numpy.unpackbits(packed, axis=-1, count=count, bitorder=bitorder)``.

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
        columns = most = 8 * packed.shape[-1]
        if count is not None:
            columns = bounded_int(
                "count", count, max(most - 7, 0), most, "Pass 8 for each byte of a row, or up to 7 fewer."
            )
        bytes_ = torch.empty((*packed.shape[:-1], columns), dtype=torch.uint8, device=packed.device)
        call(self.ops.unpack, packed.contiguous(), bytes_, max(columns, 1), big)
        return bytes_


def _is_big(bitorder: str) -> bool:
    if bitorder not in _BIT_ORDERS:
        allowed = " or ".join(_BIT_ORDERS)
        raise OpArgumentError(f"bitorder is {bitorder!r}; {allowed} is required.", "Pass one of these.")
    return bitorder == "big"


def _first(name: str, tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The first ``size`` elements of a tensor, in one dimension."""
    if not 0 <= size <= tensor.numel():
        raise OpArgumentError(
            f"size is {size}; {name} has {tensor.numel()} elements.", f"Pass a size of 0 to {tensor.numel()}."
        )
    require_memory(name, tensor)
    return tensor.reshape(-1)[:size]


OP = OpFamily(
    "packbits",
    "PackbitsBuilder",
    "pack signs into bits, and unpack them",
    xpu=sycl_spec("packbits", SyclBitsModule),
    elsewhere=python_spec("packbits", SignBitsModule),
)


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """Pack uint8 or bool (..., n) to bits, uint8 (..., (n + 7) // 8): ``numpy.packbits`` along the last dimension.

    Arguments and errors: :meth:`SyclBitsModule.pack`.
    """
    packed: torch.Tensor = load_sycl(OP).pack(x, bitorder)
    return packed


def unpackbits(packed: torch.Tensor, count: int | None = None, bitorder: str = "big") -> torch.Tensor:
    """The reverse of :func:`packbits`: bits, uint8 (..., m), to uint8 (..., ``count``) of zeros and ones.

    Arguments and errors: :meth:`SyclBitsModule.unpack`.
    """
    bits: torch.Tensor = load_sycl(OP).unpack(packed, count, bitorder)
    return bits
