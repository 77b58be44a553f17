"""Adam with its moments on disk, except those that are in use, being read or being written back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from op_builder.ops import CPUAdam, TensorStore

STATES = ("exp_avg", "exp_avg_sq")
SLOTS = 3
"""Chunks in memory at a time: one is updated, one is fetched, one is written back."""


@dataclass(frozen=True)
class _Chunk:
    """Some parameters, their optimizer, and the memory for their moments.

    Attributes:
        moments: float32, one dimension; the states of ``optimizer`` are views of it, so that a load fills them.
    """

    name: str
    optimizer: CPUAdam
    moments: torch.Tensor


class SwappedAdam(Optimizer):
    """:class:`CPUAdam` in chunks of parameters whose moments share a few buffers.

    While one chunk is updated, the moments of the next are read and those of the one before written.
    A chunk is updated as soon as the backward pass has all its gradients, beginning with the last
    layers, so that reading and writing overlap with that pass; ``step()`` updates the rest. The first
    two chunks are read during the forward pass. Where a chunk's moments are in memory, they are always
    at the same place, so that what CPUAdam prepares once stays valid.

    It supports one backward pass for each step, and nothing that needs all gradients before the first
    update (clipping, a loss scale that may skip the step).

    Args:
        params: float32 CPU parameters.
        store: where the moments go; the constructor saves zeros.
        chunks: parts of about one size, a multiple of ``SLOTS``; fewer if there are not as many parameters.
        new_buffer: float32 memory of that many elements; best page-locked.
        options: CPUAdam's.

    Attributes:
        parameters: all of them, as they were given.
        waited_s: total seconds that updates waited for the disk.
        update_s: total seconds of updates, these included.
        memory_bytes, moments_bytes: of the buffers, and of all moments.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        store: TensorStore,
        *,
        chunks: int,
        new_buffer: Callable[[int], torch.Tensor],
        **options: Any,
    ) -> None:
        self.parameters = list(params)
        parts = split(self.parameters[::-1], chunks)
        super().__init__([{"params": part} for part in parts], {})
        self._store = store
        sizes = [sum(parameter.numel() for parameter in part) * len(STATES) for part in parts]
        buffers = [new_buffer(max(sizes[slot::SLOTS])) for slot in range(SLOTS)]
        self.memory_bytes = sum(buffer.nbytes for buffer in buffers)
        self.moments_bytes = 4 * sum(sizes)
        self.waited_s = self.update_s = 0.0
        self._chunks = [
            _chunk(f"moments-{index}", part, buffers[index % SLOTS][:size], options)
            for index, (part, size) in enumerate(zip(parts, sizes, strict=True))
        ]
        # The same groups, so that schedulers set the learning rates of the parts.
        self.param_groups = [chunk.optimizer.param_groups[0] for chunk in self._chunks]
        for chunk in self._chunks:
            chunk.moments.zero_()
            store.save(chunk.name, chunk.moments)
        self._saved: dict[int, Future[None]] = {}
        self._loaded: dict[int, Future[torch.Tensor]] = {}
        for index in range(SLOTS - 1):
            self._fetch(index)
        self._start_round()
        for index, part in enumerate(parts):
            for parameter in part:
                parameter.register_post_accumulate_grad_hook(partial(self._gradient_came, index))

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient and was not updated during the backward pass."""
        assert closure is None
        while self._next < len(self._chunks):
            self._update_next()
        self._start_round()

    def stored_moments(self) -> dict[nn.Parameter, dict[str, torch.Tensor]]:
        """All moments, read from the disk into memory of their own."""
        found: dict[nn.Parameter, dict[str, torch.Tensor]] = {}
        for chunk in self._chunks:
            parameters = chunk.optimizer.param_groups[0]["params"]
            found.update(zip(parameters, _views(self._store.load(chunk.name), parameters), strict=True))
        return found

    def _start_round(self) -> None:
        self._next = 0
        self._missing = [len(chunk.optimizer.param_groups[0]["params"]) for chunk in self._chunks]

    def _gradient_came(self, index: int, _parameter: torch.Tensor) -> None:
        self._missing[index] -= 1
        while self._next < len(self._chunks) and self._missing[self._next] == 0:
            self._update_next()

    def _update_next(self) -> None:
        started = time.perf_counter()
        index = self._next
        chunk = self._chunks[index]
        self._wait(self._loaded.pop(index))
        chunk.optimizer.step()
        self._saved[index] = self._store.save_async(chunk.name, chunk.moments)
        self._fetch((index + SLOTS - 1) % len(self._chunks))
        self._next += 1
        self.update_s += time.perf_counter() - started

    def _fetch(self, index: int) -> None:
        """Begin to read a chunk's moments, once those that were in their place are written."""
        chunk = self._chunks[index]
        before = self._saved.pop((index - SLOTS) % len(self._chunks), None)
        if before is not None:
            self._wait(before)
        self._loaded[index] = self._store.load_async(chunk.name, chunk.moments)

    def _wait(self, future: Future[Any]) -> None:
        started = time.perf_counter()
        future.result()
        self.waited_s += time.perf_counter() - started


def split(parameters: list[nn.Parameter], chunks: int) -> list[list[nn.Parameter]]:
    """Successive parts of about one size, none empty; how many is a multiple of ``SLOTS``.

    Raises:
        ValueError: there are fewer parameters than ``SLOTS``.
    """
    count = min(chunks, len(parameters)) // SLOTS * SLOTS
    if count == 0:
        raise ValueError(f"{len(parameters)} parameters in {chunks} chunks; at least {SLOTS} of both are needed")
    total = sum(parameter.numel() for parameter in parameters)
    parts: list[list[nn.Parameter]] = [[]]
    done = 0
    for at, parameter in enumerate(parameters):
        left = len(parameters) - at
        is_due = done >= total * len(parts) / count or left == count - len(parts)
        if parts[-1] and len(parts) < count and is_due:
            parts.append([])
        parts[-1].append(parameter)
        done += parameter.numel()
    return parts


def _chunk(name: str, parameters: list[nn.Parameter], moments: torch.Tensor, options: dict[str, Any]) -> _Chunk:
    optimizer = CPUAdam(parameters, **options)
    for parameter, views in zip(parameters, _views(moments, parameters), strict=True):
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **views}
    return _Chunk(name, optimizer, moments)


def _views(moments: torch.Tensor, parameters: list[nn.Parameter]) -> list[dict[str, torch.Tensor]]:
    """For each parameter its states, of its shape, one after another in ``moments``."""
    views = []
    begin = 0
    for parameter in parameters:
        views.append({})
        for state in STATES:
            views[-1][state] = moments[begin : begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()
    return views
