"""Checks of arguments, and one way for all ops to say what is wrong with them.

The bindings check tensors (they must: wrong ones would write outside memory); this module checks
numbers, and puts what a binding or torch's dispatcher refuses into an :class:`OpArgumentError`.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, SupportsFloat, TypeVar, cast

import torch
from torch._compile import _disable_dynamo

from op_builder.errors import OpArgumentError
from op_builder.load.operators import named_error

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LAST_STEP = 2**53  #: floats hold every whole number up to here


def untraced(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """``function``, called by torch.compile outside its graph, as it calls torch's own optimizers.

    For what changes things that only the native side knows, as prepared lists and files: tracing would run an op
    for real, and the graph would drop it as one that does nothing.
    """
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        # Where nobody compiles, nobody pays the seconds that importing the compiler takes.
        chosen = disabled if "torch._dynamo" in sys.modules else function
        return chosen(*arguments, **keywords)

    return call


def is_traced() -> bool:
    """Whether torch.compile reads the caller's code now.

    Numbers stay what they are then, so that the graph takes them as inputs: float() and the like would make them
    constants, and another learning rate would compile the graph anew, until torch gives up.
    """
    return torch.compiler.is_compiling()


def _is_read_later(value: object) -> bool:
    return isinstance(value, torch.Tensor) and is_traced()


def finite_number(name: str, value: SupportsFloat) -> float:
    """``value`` as a float: a Python or NumPy number or a tensor of one element.

    Raises:
        OpArgumentError: not a number, NaN, infinite or negative.
    """
    if _is_read_later(value):
        return cast(float, value)
    try:
        number = cast(float, value) if is_traced() else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise OpArgumentError(f"{name} is {value!r}, which is not a number.", f"Pass {name} as a float.") from None
    if not 0 <= number <= sys.float_info.max:
        raise OpArgumentError(f"{name} is {number}; it must be finite and at least 0.", f"Correct {name}.")
    return number


def fraction(name: str, value: SupportsFloat) -> float:
    """``value`` as a float in [0, 1).

    Raises:
        OpArgumentError: it is not one.
    """
    number = finite_number(name, value)
    if not _is_read_later(value) and number >= 1:
        raise OpArgumentError(f"{name} is {number}; it must be at least 0 and below 1.", f"Correct {name}.")
    return number


def checked_numbers(**numbers: SupportsFloat) -> dict[str, float]:
    """An optimizer's numbers, by the names they came with: betas in [0, 1), all others finite and at least 0.

    Raises:
        OpArgumentError: one is not.
    """
    return {
        name: (fraction if name.startswith("beta") else finite_number)(name, value) for name, value in numbers.items()
    }


def check_nesterov(options: Mapping[str, Any]) -> None:
    """Nesterov's momentum, where an optimizer has that option, needs a momentum and no dampening.

    Raises:
        OpArgumentError: it came without, or with dampening.
    """
    if options.get("nesterov") and (options["momentum"] == 0 or options["dampening"] != 0):
        raise OpArgumentError(
            f"nesterov came with momentum={options['momentum']} and dampening={options['dampening']}.",
            "Pass a momentum above 0 and no dampening, or nesterov=False.",
        )


def step_number(step: object) -> int:
    """``step`` as an int of at least 1.

    Raises:
        OpArgumentError: it is not one.
    """
    if _is_read_later(step):
        return cast(int, step)
    remedy = "Pass the number of this update, counted from 1."
    try:
        number = cast(int, step) if is_traced() else operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        raise OpArgumentError(f"step is {step!r}, which is not an int.", remedy) from None
    if isinstance(step, bool) or not 1 <= number <= LAST_STEP:
        raise OpArgumentError(f"step is {step!r}; steps count from 1 to 2**53.", remedy)
    return number


def whole_number(name: str, value: object, remedy: str = "") -> int:
    """``value`` as an int of 64 bits, which is what an op takes: Python's, NumPy's or torch's.

    Raises:
        OpArgumentError: it is not one, or a bool.
    """
    remedy = remedy or f"Pass {name} as an int of 64 bits."
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise OpArgumentError(f"{name} is {value!r}, which is not an int.", remedy) from None
    if isinstance(value, bool) or not -(2**63) <= number < 2**63:
        raise OpArgumentError(f"{name} is {value!r}, which is no int of 64 bits.", remedy)
    return number


@contextmanager
def explained() -> Iterator[None]:
    """Turn what a binding refuses (csrc/bindings/tensor_checks.h) into an OpArgumentError."""
    try:
        yield
    except (ValueError, RuntimeError, MemoryError) as raised:
        error = named_error(raised)
        if isinstance(error, ValueError):  # what was found, newline, remedy
            found, _, remedy = str(error).partition("\n")
            raise OpArgumentError(found, remedy) from None
        if error is raised:
            raise
        raise error from None


def is_dense(tensor: object) -> bool:
    """Whether it is a tensor, and not a sparse one."""
    return isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided


def not_dense(what: str, tensor: Any) -> OpArgumentError:
    """The error for an argument that :func:`is_dense` refuses."""
    if not isinstance(tensor, torch.Tensor):
        return OpArgumentError(f"{what} is of type {type(tensor).__name__}.", "Pass a torch.Tensor.")
    return OpArgumentError(
        f"{what} has layout {tensor.layout}; a dense (strided) tensor is needed.",
        "Pass a dense tensor, for example x.to_dense().",
    )
