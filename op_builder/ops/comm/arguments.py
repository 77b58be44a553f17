"""The arguments of a process group's methods: which calls shared memory serves, and dense memory for their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import bounded_int, is_overlapping, require_memory

Tensors = Sequence[torch.Tensor]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
REDUCIBLE = dict.fromkeys(("sum", "max", "min"), (*_FLOATS, torch.int32)) | {"avg": _FLOATS}
"""The types that are reduced, by operation."""

_GLOO_TYPES = (*_FLOATS, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64)

_SUM = dist.ReduceOp.SUM
_OPS: dict[Any, str] = {_SUM: "sum", dist.ReduceOp.AVG: "avg", dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}
_DEFAULT_DISPATCH = torch.Tensor.__torch_dispatch__

# The argument that has the same size on all ranks, if that is not the first one; None if no argument has.
_COMPARED: dict[str, int | None] = {
    "gather": 1,
    "reduce_scatter": 1,
    "reduce_scatter_single": 1,
    "_reduce_scatter_base": 1,
    "reduce_scatter_single_coalesced": 1,
    "reduce_scatter_tensor_coalesced": 1,
    "alltoall": None,
    "alltoall_base": None,
    "all_to_all_single": None,
}


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a dense tensor in host memory. Subclasses are plain, unless they replace torch's operations."""
    return tensor.is_cpu and tensor.layout is torch.strided and type(tensor).__torch_dispatch__ is _DEFAULT_DISPATCH


def are_plain(tensors: Tensors, dtypes: tuple[torch.dtype, ...] | None = None) -> bool:
    """Whether all are plain, and of one of the types."""
    return all(is_plain(tensor) and (dtypes is None or tensor.dtype in dtypes) for tensor in tensors)


def as_list(tensors: Any) -> list[torch.Tensor]:
    """One tensor or several, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def flat_tensors(arguments: Any) -> list[torch.Tensor]:
    """All tensors of an argument, which may be a list of lists."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    if isinstance(arguments, (list, tuple)):
        return [tensor for argument in arguments for tensor in flat_tensors(argument)]
    return []


def reduction(rest: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The operation, None if shared memory does not support it; and whether the call is asynchronous."""
    given = rest[0] if rest else keywords.get("opts", keywords.get("op", _SUM))
    op = getattr(given, "reduceOp", given)
    return _OPS.get(getattr(op, "op", op)), is_async(rest, keywords)


def is_async(rest: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """Whether the call is asynchronous, as it is by default."""
    given = [argument for argument in (*rest, *keywords.values()) if hasattr(argument, "asyncOp")]
    return bool(given[0].asyncOp) if given else True


def are_alike(singles: Tensors, nested: Sequence[Tensors], size: int) -> bool:
    """Whether each list has one tensor per rank, all with the size and type of its single tensor."""
    return len(singles) == len(nested) and all(
        len(listed) == size and all(one.numel() == single.numel() and one.dtype == single.dtype for one in listed)
        for single, listed in zip(singles, nested, strict=True)
    )


def checked_rank(name: str, value: int, size: int) -> int:
    """A rank of a group of ``size`` as an int, or an OpArgumentError."""
    return bounded_int(name, value, 0, size - 1, f"Pass an int of 0 to {size - 1}: the group has {size} ranks.")


def checked_timeout(timeout_s: float) -> float:
    """Seconds as a float, or an OpArgumentError."""
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s < 1e9:
        raise OpArgumentError(f"timeout_s is {timeout_s!r}.", "Pass a number of seconds above 0.")
    return float(timeout_s)


def require_gloo_tensors(name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Raise an OpArgumentError for a type that gloo does not support, which it would not name, or for freed memory."""
    is_average = any(op == dist.ReduceOp.AVG for op in _reduce_ops([*arguments, *keywords.values()]))
    for tensor in flat_tensors(arguments):
        dtype = tensor.dtype
        if dtype not in _GLOO_TYPES or (is_average and not dtype.is_floating_point):
            converted = "x.float()" if dtype.is_floating_point else "x.long()"
            converted = "torch.view_as_real(x)" if dtype.is_complex else converted
            raise OpArgumentError(
                f"{name}{' with avg' if is_average else ''} does not support {dtype}.",
                "Reduce with sum, then divide." if is_average else f"Convert the tensors, for example {converted}.",
            )
        if is_plain(tensor):
            require_memory(f"A tensor of {name}", tensor)


def _reduce_ops(options: Iterable[Any]) -> Iterator[dist.ReduceOp.RedOpType]:
    for option in options:
        op = getattr(option, "reduceOp", option)
        op = getattr(op, "op", op)
        if isinstance(op, dist.ReduceOp.RedOpType):
            yield op


def describe(name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Describe a call: equal calls have equal descriptions."""
    options = [*arguments, *keywords.values()]
    text = name.lstrip("_").replace("allreduce", "all_reduce").replace("allgather", "all_gather")
    text += "".join(f" ({op.name.lower()})" for op in _reduce_ops(options))
    compared = _COMPARED.get(name, 0)
    tensors = flat_tensors(arguments[compared or 0]) if arguments else []
    if tensors and compared is not None:
        text += f" of {sum(tensor.numel() for tensor in tensors)}"
    text += "".join(f" {dtype}".replace("torch.", "") for dtype in dict.fromkeys(tensor.dtype for tensor in tensors))
    text += "".join(f" {layout}" for layout in {str(tensor.layout) for tensor in tensors} - {"torch.strided"})
    roots = [option.rootRank for option in options if hasattr(option, "rootRank")]
    return f"{text}, root {roots[0]}" if roots else text


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor as contiguous memory: the tensor, or a copy. Other tensors are returned unchanged."""
    if not is_plain(tensor):
        return tensor
    if type(tensor) is torch.Tensor and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    require_memory("The tensor", tensor)
    return without_class(tensor).resolve_conj().resolve_neg().contiguous()


def require_apart(outputs: Tensors) -> None:
    """Raise an OpArgumentError if elements of an output share memory, as in an expanded tensor."""
    if any(is_plain(output) and is_overlapping(without_class(output)) for output in outputs):
        raise OpArgumentError(
            "Elements of the output share memory, as those of an expanded tensor do.",
            "Pass a tensor whose elements do not share memory, for example x.clone().",
        )


def write_back(tensor: torch.Tensor, result: torch.Tensor) -> None:
    """Copy ``result`` into ``tensor``, whose elements are apart, unless they are the same memory."""
    if result is tensor or not is_plain(tensor):
        return
    target = without_class(tensor)
    if target.data_ptr() == result.data_ptr() and target.is_contiguous():
        return
    require_memory("The output", target)
    target.copy_(result.view(target.shape))


def fill(tensor: torch.Tensor, collective: Callable[[torch.Tensor], object]) -> None:
    """Run ``collective`` with contiguous memory for ``tensor``; raises as :func:`require_apart`."""
    memory = dense(tensor)
    if memory is not tensor:
        require_apart([tensor])
    collective(memory)
    write_back(tensor, memory)


def without_class(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor as one of class ``torch.Tensor``, with the same memory and strides."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


def replace_tensors(arguments: Any, replacements: Iterable[torch.Tensor]) -> Any:
    """The same argument with the replacements in the order of :func:`flat_tensors`."""
    if isinstance(arguments, torch.Tensor):
        return next(iter(replacements))
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(replace_tensors(argument, replacements) for argument in arguments)
    return arguments
