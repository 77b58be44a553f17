"""What is done on the calling thread while a native op works on torch's other threads.

All of it is functions that are C alone, as ``sum`` over ``map`` of builtins: where Python code ran, handlers of
signals would, too, and find tensors half updated, or move those that were looked at. Their iterators are made
beforehand: before Python 3.12 a collection of garbage, and with it anybody's finalizers, begins wherever a container
is made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from operator import attrgetter, is_
from typing import Any, NamedTuple, cast

import torch

# With fewer, what is to be done is done before threads could share it.
_MANY_TENSORS = 1000

_Function = ctypes.CFUNCTYPE(None)
_Answer = ctypes.CFUNCTYPE(ctypes.c_int64)

_grad_of = attrgetter("grad")
_GRAD = torch._C.TensorBase.grad

# What answers count from. A function that fails leaves no answer where ctypes puts one, but perhaps an earlier one.
_bases = count(1 << 28, 1 << 28)


def are_many(tensors: int) -> bool:
    """Whether so many tensors are worth working on beside an op."""
    return tensors >= _MANY_TENSORS


class Question(NamedTuple):
    """What an op asks while torch's other threads look at its tensors; it goes on only if the answer is ``yes``.

    Attributes:
        function: without arguments, made of C alone; asked once.
        yes: no answer of another question is this number.
    """

    function: Callable[[], int]
    yes: int


def whether_grads_are(
    params: Sequence[Sequence[torch.Tensor]], grads: Sequence[Sequence[torch.Tensor | None]]
) -> Question | None:
    """The question whether the parameters of some groups have these very gradients.

    Args:
        params: of each group; none is of a class of its own.
        grads: as many.

    Returns:
        None: asking would run Python code.
    """
    if torch._C._len_torch_function_stack() or not torch.Tensor.grad is torch.nn.Parameter.grad is _GRAD:
        return None
    base = next(_bases)
    present = map(_grad_of, chain(*map(iter, params)))
    function = partial(sum, map(is_, present, chain(*map(iter, grads))), base)
    return Question(function, base + sum(map(len, grads)))


def call_beside(
    op: Callable[..., bool],
    arguments: Sequence[Any],
    function: Callable[[], object] | None = None,
    question: Question | None = None,
) -> bool:
    """Call an op that calls C functions of ours on this thread, while torch's others do what else there is to do.

    Args:
        op: takes ``arguments``, the address and the ``yes`` of the question, and the address of ``function``.
        function: what a C function calls. What it raises is lost: its effects must tell whether it came to its end.
        question: what is asked before anything is changed.

    Returns:
        What the op does: False where the answer was not yes.
    """
    callback = None if function is None else _Function(function)
    asked, yes = (None, 0) if question is None else (_Answer(question.function), question.yes)
    return op(*arguments, _address_of(asked), yes, _address_of(callback))


def update_beside(
    op: Callable[..., bool],
    arguments: Sequence[Any],
    changed: Sequence[torch.Tensor],
    question: Question | None = None,
) -> bool:
    """Call an op that changes tensors, while autograd's versions of them are counted up; as :func:`call_beside`."""
    told: list[None] = []
    is_updated = call_beside(op, arguments, partial(told.extend, _tells_autograd(changed)), question)
    if is_updated and not told:
        torch.autograd.graph.increment_version(changed)
    return is_updated


def _tells_autograd(changed: Sequence[torch.Tensor]) -> Iterator[None]:
    """What counts versions up when it is asked for its one item."""
    # What torch.autograd.graph.increment_version calls.
    return map(torch._C._increment_version, (iter(changed),))


def _address_of(function: ctypes._FuncPointer | None) -> int:
    # cast() would make a reference cycle.
    return 0 if function is None else cast(int, ctypes.c_void_p.from_buffer(function).value)
