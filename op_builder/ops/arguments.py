"""Checks of arguments that all ops share.

The bindings check tensors, because a wrong one would write outside memory. This module checks numbers, and turns what
a binding or torch's dispatcher rejects into an :class:`OpArgumentError`.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, SupportsFloat, TypeVar, cast

import torch

from op_builder.errors import OpArgumentError
from op_builder.load.open import named_error

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LAST_STEP = 2**53  #: the largest step: a float64 holds every whole number up to here


def untraced(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make ``torch.compile`` call ``function`` outside its graph, as it does with torch's own optimizers.

    Use it where a call changes state of the native side, such as prepared lists and files: tracing would run the op for
    real, and the graph would drop it because it returns nothing.
    """
    disabled: Callable[Arguments, Result] | None = None

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        nonlocal disabled
        # Only in programs that compile: disable() imports the compiler, which takes seconds.
        if disabled is None and "torch._dynamo" in sys.modules:
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return (disabled or function)(*arguments, **keywords)

    return call


def is_traced() -> bool:
    """Whether torch.compile is tracing the caller.

    Numbers are then passed on unchanged and become inputs of the graph. float() and the like would make them constants,
    so that each new learning rate would compile another graph.
    """
    return torch.compiler.is_compiling()


def _is_traced_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and is_traced()


def _scalar(value: Any) -> Any:
    """The number in an array or a tensor of one element; any other value as it is.

    Raises:
        TypeError: it has several elements, or none in memory.
    """
    if isinstance(value, (int, float)) or not hasattr(value, "item"):
        return value
    try:
        if isinstance(value, torch.Tensor) and not value.is_meta:
            require_memory("A tensor that is read as a number", value)
        return value.item()
    except OpArgumentError:
        raise
    except (RuntimeError, ValueError) as error:
        raise TypeError(str(error)) from None


def _float(value: Any) -> float:
    """Convert a number, or an array or tensor of one element, but no text; a TypeError for any other value."""
    number = _scalar(value)
    if isinstance(number, (str, bytes, bytearray)):
        raise TypeError("text is not a number")
    try:
        return float(number)
    except (ValueError, OverflowError) as error:
        raise TypeError(str(error)) from None


def _index(value: Any) -> int:
    """Convert an integer, or an array or tensor of one, but no bool; a TypeError for any other value."""
    number = _scalar(value)
    if isinstance(number, bool):
        raise TypeError("a bool is not an int")
    return operator.index(number)


def _number(name: str, value: Any) -> float:
    try:
        return _float(value)
    except TypeError:
        raise OpArgumentError(f"{name} is {value!r}, which is not a number.", f"Pass {name} as a float.") from None


def positive_number(name: str, value: SupportsFloat) -> float:
    """Convert a number, or an array or tensor of one element, to a float above 0, or raise an OpArgumentError."""
    number = _number(name, value)
    if not number > 0:
        raise OpArgumentError(f"{name} is {number}; it must be above 0.", f"Pass a {name} above 0.")
    return number


def finite_number(name: str, value: SupportsFloat) -> float:
    """Convert a number, or an array or tensor of one element, to a finite float >= 0, or raise an OpArgumentError."""
    if _is_traced_tensor(value):
        return cast(float, value)
    number = cast(float, value) if is_traced() else _number(name, value)
    if not 0 <= number <= sys.float_info.max:
        raise OpArgumentError(
            f"{name} is {number}; it must be finite and at least 0.", f"Pass a finite {name} of at least 0."
        )
    return number


def fraction(name: str, value: SupportsFloat) -> float:
    """``value`` as a float in [0, 1), or an OpArgumentError."""
    number = finite_number(name, value)
    if not _is_traced_tensor(value) and number >= 1:
        raise OpArgumentError(
            f"{name} is {number}; it must be at least 0 and below 1.", f"Pass a {name} from 0 to below 1."
        )
    return number


def checked_number(name: str, value: SupportsFloat) -> float:
    """An optimizer's number as a float; an OpArgumentError unless a beta is in [0, 1), another finite and >= 0."""
    return (fraction if name.startswith("beta") else finite_number)(name, value)


def checked_numbers(**numbers: SupportsFloat) -> dict[str, float]:
    """An optimizer's numbers by name, each as from :func:`checked_number`."""
    return {name: checked_number(name, value) for name, value in numbers.items()}


def checked_option(name: str, value: Any) -> Any:
    """A group's number as from :func:`checked_number`; a tensor stays one, because schedulers change it in place."""
    number = checked_number(name, value)
    return value if isinstance(value, torch.Tensor) else number


def checked_betas(betas: Any) -> tuple[Any, ...]:
    """A pair of numbers in [0, 1), each as from :func:`checked_option`, or an OpArgumentError."""
    try:
        beta1, beta2 = betas if isinstance(betas, Sequence) else ()
    except (TypeError, ValueError):
        raise OpArgumentError(
            f"betas is {betas!r}; it must be two numbers.", "Pass two numbers, for example betas=(0.9, 0.999)."
        ) from None
    pair = checked_option("betas[0]", beta1), checked_option("betas[1]", beta2)
    # The same object, so that a step finds that no option has changed.
    return betas if isinstance(betas, tuple) and all(map(operator.is_, pair, betas)) else pair


def step_count(what: str, step: Any) -> float:
    """A number or a tensor of one element as a float; an OpArgumentError unless it is whole and at least 0."""
    try:
        number = _float(step)
    except TypeError:
        number = math.nan
    if not (number.is_integer() and 0 <= number <= LAST_STEP):
        raise OpArgumentError(
            f"{what} has step {step!r}; it must be a whole number of at least 0.",
            "Load a state_dict() that an optimizer returned.",
        )
    return number


def check_nesterov(options: Mapping[str, Any]) -> None:
    """Raise an OpArgumentError if ``nesterov`` is set without momentum or with dampening."""
    if options.get("nesterov") and (options["momentum"] == 0 or options["dampening"] != 0):
        raise OpArgumentError(
            f"nesterov=True was given with momentum={options['momentum']} and dampening={options['dampening']}.",
            "Pass a momentum above 0 and no dampening, or nesterov=False.",
        )


def step_number(step: object) -> int:
    """``step`` as an int from 1 to 2**53, or an OpArgumentError."""
    if _is_traced_tensor(step):
        return cast(int, step)
    remedy = "Pass the number of this update, counted from 1."
    try:
        number = cast(int, step) if is_traced() else _index(step)
    except TypeError:
        raise OpArgumentError(f"step is {step!r}, which is not an int.", remedy) from None
    if not 1 <= number <= LAST_STEP:
        raise OpArgumentError(f"step is {step!r}; steps count from 1 to 2**53.", remedy)
    return number


def switch(name: str, value: object) -> bool:
    """``value`` as a bool, or an OpArgumentError: to Python the text "no" is true."""
    try:
        given = _scalar(value)
    except TypeError:
        given = None
    if given not in (False, True):
        raise OpArgumentError(f"{name} is {value!r}; True or False is required.", f"Pass {name} as a bool.")
    return bool(given)


def bounded_int(name: str, value: object, least: int, most: int | None, remedy: str) -> int:
    """Python's, NumPy's or torch's int, but no bool, from ``least`` to ``most``, or an OpArgumentError."""
    try:
        number = _index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"of {least}" if least == most else f"of {least} to {most}"
        raise OpArgumentError(f"{name} is {value!r}; an int {limits} is required.", remedy)
    return number


def checked_shape(shape: Any, remedy: str) -> tuple[int, ...]:
    """The lengths of a shape as ints of at least 0, or an OpArgumentError."""
    try:
        return tuple(bounded_int("a length in shape", length, 0, 2**63 - 1, remedy) for length in shape)
    except TypeError:
        raise OpArgumentError(f"shape is {shape!r}; lengths are required.", remedy) from None


class explained:
    """A context that turns an argument error of a binding (csrc/bindings/tensor_checks.h) into an OpArgumentError.

    A class: contextlib's generators take a microsecond, which a step of a few small tensors would notice.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: object) -> None:
        if not isinstance(raised, (ValueError, RuntimeError, MemoryError)):
            return
        error = named_error(raised)
        if isinstance(error, ValueError):  # what was found, newline, remedy
            found, _, remedy = str(error).partition("\n")
            raise OpArgumentError(found, remedy) from None
        if error is not raised:
            raise error from None


def is_dense(tensor: object) -> bool:
    """Whether this is a dense (strided) tensor. A nested one has that layout, too, but no elements in order."""
    return isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_nested


def not_dense(what: str, tensor: Any) -> OpArgumentError:
    """The error for an argument that :func:`is_dense` rejects."""
    if not isinstance(tensor, torch.Tensor):
        return OpArgumentError(f"{what} is of type {type(tensor).__name__}.", "Pass a torch.Tensor.")
    if tensor.is_nested:
        return OpArgumentError(f"{what} is nested; a dense (strided) tensor is required.", "Pass its parts one by one.")
    return OpArgumentError(
        f"{what} has layout {tensor.layout}; a dense (strided) tensor is required.",
        "Pass a dense tensor, for example x.to_dense().",
    )


def reach_of(tensor: torch.Tensor) -> int:
    """The length of the part of its storage that a dense tensor spans, in elements; 0 if it is empty."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def require_memory(what: str, tensor: torch.Tensor) -> None:
    """Raise an OpArgumentError if a dense tensor reaches beyond its storage: reading it would end the process.

    torch's own functions do not check it. Ignores tensors that are traced, and wrappers without storage, as in
    ``torch.func.vmap``.
    """
    if is_traced():
        return
    try:
        stored = tensor.untyped_storage().nbytes()
    except RuntimeError:
        return
    end = (tensor.storage_offset() + reach_of(tensor)) * tensor.element_size() if tensor.numel() else 0
    if stored < end:
        raise OpArgumentError(
            f"{what} reaches to byte {end} of its storage, which has {stored}: it was freed or shrunk.",
            f"Allocate it again, for example by x.untyped_storage().resize_({end}).",
        )


def is_overlapping(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory: some stride is within the reach of the dimensions with smaller strides."""
    if tensor.numel() == 0:
        return False
    reach = 0  # offset of the last element along the smaller strides
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as a vector of uint8."""
    return tensor.detach().view(-1).view(torch.uint8)
