"""What the tests of the fused optimizers share: their modules, and tensors in the order these take."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.support.adam_reference import Options, Tensors, random_tensors

CHUNK = 65536


def lists_of(cases: Sequence[Tensors]) -> list[list[torch.Tensor]]:
    """``[grads, params, *states]``."""
    states = zip(*(case.states for case in cases), strict=True)
    return [[case.grad for case in cases], [case.param for case in cases], *map(list, states)]


def positional(options: Options) -> tuple[float, ...]:
    """The arguments of ``multi_tensor_adam`` after the lists."""
    return (
        *(options.lr, options.beta1, options.beta2, options.eps, options.step),
        *(int(options.adamw_mode), options.bias_correction, options.weight_decay),
    )


def mixed_cases(lengths: Sequence[int] = (0, 1, 17, 1000, 4097), offset: int = 0) -> list[Tensors]:
    """Tensors of several types and lengths, ``offset`` elements into their storage."""
    types = [
        (torch.float32, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float32, torch.float16),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    ]
    return [random_tensors(n, *each, seed=n, offset=offset) for n in lengths for each in types]


def assert_same(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
