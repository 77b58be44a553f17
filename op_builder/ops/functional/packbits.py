"""The op ``packbits``: the signs of numbers as bits, by torch's functions."""

from __future__ import annotations

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.declare import python_spec
from op_builder.spec import OpFamily


class SignBitsModule:
    """The signs of numbers as bits, eight in a byte, the first in its highest bit; for 1-bit optimizers.

    It is the object that ``PackbitsBuilder().load()`` returns.
    """

    def packbits(self, tensor: torch.Tensor, size: int, rank: int = 0) -> torch.Tensor:  # noqa: ARG002
        """The signs of the first ``size`` elements: 1 for a number of at least 0. Zeros fill the last byte.

        Args:
            rank: ignored; the tensor's device counts.

        Returns:
            (size + 7) // 8 elements of uint8 on the tensor's device.
        """
        if not 0 <= size <= tensor.numel():
            raise OpArgumentError(f"size is {size}; the tensor has {tensor.numel()} elements.", "Pass at most that.")
        bits = torch.nn.functional.pad((tensor.reshape(-1)[:size] >= 0).to(torch.uint8), (0, -size % 8))
        return (bits.view(-1, 8) * _weights(tensor.device)).sum(1, dtype=torch.uint8)

    def unpackbits(self, packed: torch.Tensor, size: int, rank: int = 0) -> torch.Tensor:  # noqa: ARG002
        """The numbers that the bits of the first ``size`` bytes stand for: 1.0 and -1.0.

        Returns:
            8 * size elements of float32 on the tensor's device.
        """
        if not 0 <= size <= packed.numel():
            raise OpArgumentError(f"size is {size}; the tensor has {packed.numel()} bytes.", "Pass at most that.")
        bits = packed.reshape(-1)[:size].unsqueeze(1).bitwise_and(_weights(packed.device)).ne(0)
        return bits.reshape(-1).to(torch.float32) * 2 - 1


def _weights(device: torch.device) -> torch.Tensor:
    return torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=device)


OP = OpFamily(
    "packbits",
    "PackbitsBuilder",
    "pack the signs of numbers into bits, and unpack them",
    elsewhere=python_spec("packbits", SignBitsModule),
)
