"""A rank's share of a :class:`CharacterTransformer`, which generates one character after another.

The heads of the attention and the units of the feed-forward layer are divided among the ranks (Shoeybi et al., 2019,
Megatron-LM). Each rank computes its share, and an all-reduce adds up the shares, twice in every block.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from examples.characters.model import Block, CharacterTransformer

AllReduce = Callable[[torch.Tensor], None]
"""Adds up a tensor over all ranks, in place."""


class BlockShare:
    """One rank's heads and units of a block, and what its heads have seen so far."""

    def __init__(self, block: Block, rank: int, size: int) -> None:
        width = block.attention_out.weight.shape[0]
        self._block = block
        self._heads = block.heads // size
        self._per_head = width // block.heads
        own = slice(rank * width // size, (rank + 1) * width // size)
        joined = block.queries_keys_values.weight.view(3, width, width)
        self._queries_keys_values = joined[:, own].reshape(-1, width).contiguous()
        self._attention_out = block.attention_out.weight[:, own].contiguous()
        self._norm, up, _, down = block.feed_forward
        units = up.weight.shape[0] // size
        mine = slice(rank * units, (rank + 1) * units)
        self._up, self._up_bias = up.weight[mine].contiguous(), up.bias[mine].contiguous()
        self._down, self._down_bias = down.weight[:, mine].contiguous(), down.bias
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor, all_reduce: AllReduce) -> torch.Tensor:
        """The block's output for the next place, (batch, width), from its input there."""
        share = functional.linear(self._attention(self._block.attention_norm(x)), self._attention_out)
        all_reduce(share)
        x = x + share
        units = functional.gelu(functional.linear(self._norm(x), self._up, self._up_bias))
        share = functional.linear(units, self._down)
        all_reduce(share)
        return x + share + self._down_bias

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        shape = (batch, 3, self._heads, self._per_head)
        query, key, value = functional.linear(x, self._queries_keys_values).view(shape).unbind(dim=1)
        self._keys.append(key)
        self._values.append(value)
        keys, values = torch.stack(self._keys, dim=2), torch.stack(self._values, dim=2)
        seen = functional.scaled_dot_product_attention(query.unsqueeze(2), keys, values)
        return seen.reshape(batch, -1)


@torch.no_grad()
def write(
    model: CharacterTransformer, starts: torch.Tensor, length: int, rank: int, size: int, all_reduce: AllReduce
) -> torch.Tensor:
    """``starts`` (int64, (batch, places)) and the ``length`` likeliest characters that follow, on every rank.

    Args:
        all_reduce: adds up over the ``size`` ranks; with one rank it has nothing to do.
    """
    shares = [BlockShare(block, rank, size) for block in model.blocks]
    written = starts
    for place in range(starts.shape[1] + length - 1):
        x = model.characters(written[:, place]) + model.places.weight[place]
        for share in shares:
            x = share(x, all_reduce)
        if place + 1 == written.shape[1]:
            written = torch.cat([written, model.head(x).argmax(dim=1, keepdim=True)], dim=1)
    return written
