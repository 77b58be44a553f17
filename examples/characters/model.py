"""A small transformer that predicts the next character (Vaswani et al., 2017; normalisation first)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Size of the model: ``context`` is the number of characters it sees."""

    alphabet: int
    context: int = 32
    width: int = 128
    heads: int = 8
    layers: int = 2


class Block(nn.Module):
    """Causal self-attention, then a feed-forward layer, each added to its input of shape (batch, length, width)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(shape.width),
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention_out(self._attention(self.attention_norm(x)))
        return x + self.feed_forward(x)

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        per_head = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = per_head.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(batch, length, width)


class CharacterTransformer(nn.Module):
    """Logits of the next character at each place of a text."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.characters = nn.Embedding(shape.alphabet, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.head = nn.Sequential(nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.alphabet))
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Float logits (batch, length, alphabet) for int64 indices (batch, length), length <= context."""
        places = torch.arange(indices.shape[1], device=indices.device)
        return self.head(self.blocks(self.characters(indices) + self.places(places)))

    def loss(self, pieces: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, in nats, of each character of ``pieces`` after the first."""
        logits = self(pieces[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), pieces[:, 1:].flatten())

    @torch.no_grad()
    def write(self, start: torch.Tensor, length: int, *, seed: int, temperature: float = 0.7) -> torch.Tensor:
        """``start`` (int64, one dimension) and ``length`` characters drawn to follow it, on the host."""
        generator = torch.Generator().manual_seed(seed)
        device = self.places.weight.device
        written = start
        for _ in range(length):
            logits = self(written[None, -self.shape.context :].to(device))[0, -1].float().cpu()
            drawn = torch.multinomial(torch.softmax(logits / temperature, dim=0), 1, generator=generator)
            written = torch.cat([written, drawn])
        return written
