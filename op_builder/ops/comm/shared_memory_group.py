"""The group of ranks on one host that ``shm_comm``'s ``new_group()`` returns."""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from op_builder.errors import OpArgumentError, SharedMemoryCommError
from op_builder.load.open import named_error
from op_builder.ops.arguments import checked_shape, untraced
from op_builder.ops.comm.arguments import checked_rank, checked_timeout
from op_builder.ops.comm.shared_memory_meeting import (
    GroupPlace,
    MemoryFacts,
    shared_segments,
    space_error,
)
from op_builder.system import cpu_isa

REDUCTIONS = {"sum": 0, "max": 1, "min": 2, "avg": 3}

_SPIN_NS = 50_000
_FAILED = "shm_comm: "  # how an op's error for a failed collective begins

# In the order of Failure::Kind of csrc/kernels/comm/phases.h.
_REMEDIES = {
    "none": "",
    "died": "Read the end of that rank's output or log. This group is broken; make a new one of the surviving ranks.",
    "left": "Close the group on all ranks only after the last collective.",
    "gave_up": "Read that rank's error in its output or log. This group is broken; make a new one.",
    "late": "Check what it does instead, or raise timeout_s or ACCEL_COMM_TIMEOUT_S. This group is broken.",
    "interrupted": "This group is broken; make a new one.",
    "mismatch": "Call the same collectives in the same order on all ranks of a group. "
    "Nothing was changed; the group is usable.",
    "busy": "Do not use the group in a signal handler.",
}


class SharedMemoryGroup:
    """Collectives of contiguous CPU tensors between processes of one host.

    All ranks call the same collectives in the same order, with the same number of elements of the same type; otherwise
    all raise. The results are the same on all ranks, bit for bit, and in every run. If a rank dies the others raise.
    The group is broken then, and also after a timeout and after a signal handler has raised (Ctrl-C).

    Attributes:
        size: the number of ranks.
        rank: the rank of this process, from 0.
        timeout_s: the limit of a wait for another rank.
    """

    def __init__(self, ops: Any, place: GroupPlace) -> None:
        self.size = place.size
        self.rank = place.rank
        self.timeout_s = place.timeout_s
        self._ops = ops
        # A collective of a few bytes takes about as long as two attribute look-ups in a namespace of torch ops.
        self._all_reduce = ops.all_reduce_.default
        self._reduced = ops.all_reduce.default
        self._place = place
        self._symmetric_count = 0
        self._number = _open(ops, place)
        self._closer = weakref.finalize(self, _close, ops, self._number, os.getpid())
        try:
            self.barrier()  # after it all ranks have mapped all memory
        except BaseException:
            self.close()
            raise
        place.forget("ranks")

    def __repr__(self) -> str:
        name = f" {self._place.name!r}" if self._place.name else ""
        return f"<shared-memory group{name}, rank {self.rank} of {self.size}>"

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Reduce the tensors of all ranks, element by element, into each of them.

        Args:
            tensor: float32, bfloat16, float16 or int32. 16-bit floats are summed in float32 and rounded once.
            op: ``sum``, ``max``, ``min`` or ``avg`` (floats only). NaN wins in ``max`` and ``min``; int32 wraps around.

        Returns:
            ``tensor``.

        Raises:
            OpArgumentError: an argument is invalid; nothing was sent.
            SharedMemoryCommError: a rank did not take part; the content of the tensor is undefined.
        """
        try:
            if not tensor.is_cpu:  # torch's kernel for meta tensors does nothing
                raise _unfit(tensor)
            self._all_reduce(tensor, self._number, REDUCTIONS[op])
        except Exception as error:
            raise self._explained("all_reduce", error, tensor, op=op) from None
        return tensor

    def reduced(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """:meth:`all_reduce` into a new tensor."""
        try:
            if not tensor.is_cpu:
                raise _unfit(tensor)
            result: torch.Tensor = self._reduced(tensor, self._number, REDUCTIONS[op])
        except Exception as error:
            raise self._explained("all_reduce", error, tensor, op=op) from None
        return result

    def reduce_scatter(self, out: torch.Tensor, input: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Reduce the inputs of all ranks, and give each rank its part; returns ``out``, raises as :meth:`all_reduce`.

        Args:
            out: filled with ``input.numel() / size`` elements; it may be this rank's part of ``input``.
            input: one of the types of :meth:`all_reduce`; not changed otherwise.
        """
        self._call("reduce_scatter", (out, input), _reduction(op))
        return out

    def all_gather(self, out: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        """Concatenate the inputs of all ranks by rank; returns ``out``, raises as :meth:`all_reduce`.

        Args:
            out: filled with ``size * input.numel()`` elements of the input's type.
            input: any type; it may be this rank's part of ``out``.
        """
        self._call("all_gather", (out, input))
        return out

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """Send the tensor of rank ``src``, of any type, in place; returns ``tensor``, raises as :meth:`all_reduce`."""
        self._call("broadcast_", (tensor,), checked_rank("src", src, self.size))
        return tensor

    @untraced
    def barrier(self) -> None:
        """Wait until all ranks have called this; raises as :meth:`all_reduce`."""
        self._call("barrier", ())

    @untraced
    def agree(self, text: str) -> None:
        """Raise a SharedMemoryCommError unless all ranks pass this text, which describes a call that they will make."""
        self._call("agree", (), text, operation=text)

    def set_timeout(self, timeout_s: float) -> None:
        """Change the limit of a wait for another rank, also of a wait that is running. Nothing if it is closed."""
        if self._closer.alive:
            self._ops.set_timeout(self._number, int(checked_timeout(timeout_s) * 1e9))
            self.timeout_s = timeout_s

    @untraced
    def empty_symmetric(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor in memory that all ranks see, so that collectives on it, or on views of it, copy no byte twice.

        This holds for an in-place all-reduce of more than 4 KiB, a reduce-scatter from it, an all-gather into it, and a
        broadcast. Smaller ones are copied, which is faster.

        All ranks call this together, with the same arguments, and use the same parts of it in a collective. The memory
        is freed with the last view. After :meth:`close` it is ordinary memory.

        Returns:
            zeros of that shape.

        Raises:
            OpArgumentError: ``shape`` is not a valid shape, or ``dtype`` not a ``torch.dtype``.
            SharedMemorySpaceError: there is not enough memory.
            SharedMemoryCommError: a rank did not take part.
        """
        sizes = checked_shape((shape,) if isinstance(shape, int) else shape, "Pass sizes of at least 0.")
        if not isinstance(dtype, torch.dtype):
            raise OpArgumentError(f"dtype is {dtype!r}.", "Pass a torch.dtype.")
        count = math.prod(sizes)
        if count == 0:
            return torch.zeros(sizes, dtype=dtype, device="cpu")
        size_bytes = count * dtype.itemsize
        # Fails before the ranks exchange anything if the group is broken.
        self._call("barrier", (), operation="empty_symmetric")
        memory = self._symmetric_count
        key = f"symmetric_{memory}"
        self._symmetric_count += 1
        descriptors = shared_segments(self._ops, self._place, key, size_bytes)[1]
        try:
            attached, address = self._ops.attach_symmetric(self._number, memory, size_bytes, descriptors)
            if attached > 0:
                buffer = (ctypes.c_char * size_bytes).from_address(address)
                finalizer = weakref.finalize(buffer, self._ops.release_symmetric, self._number, attached)
                finalizer.atexit = False  # tensors that live until the process ends may be read until then
            # All ranks have it or none: one without it would run other collectives.
            lacking = torch.tensor([self.size if attached > 0 else self.rank], dtype=torch.int32, device="cpu")
            lacking_rank = int(self.all_reduce(lacking, "min"))
        finally:  # all ranks have opened this rank's descriptor
            for descriptor in descriptors:
                os.close(descriptor)
        self._place.forget(key)
        if attached < 0:
            raise space_error(size_bytes, -attached)
        if lacking_rank < self.size:
            raise SharedMemoryCommError(
                f"Rank {lacking_rank} cannot map {size_bytes} bytes of symmetric memory of each rank.",
                "Read that rank's error in its output or log. The group is usable.",
                rank=lacking_rank,
                operation="empty_symmetric",
                is_group_usable=True,
            )
        return torch.frombuffer(buffer, dtype=dtype, count=count).view(sizes)

    def close(self) -> None:
        """Leave the group. Every rank calls this after its last collective; ranks that still wait for this one raise.

        A collective in another thread that waits for other ranks raises within about half a second. Symmetric tensors
        stay usable as tensors. A second call does nothing.
        """
        self._closer()

    def _call(self, name: str, tensors: tuple[torch.Tensor, ...], *arguments: int | str, operation: str = "") -> None:
        try:
            for tensor in tensors:
                if not tensor.is_cpu:
                    raise _unfit(tensor)
            getattr(self._ops, name).default(*tensors, self._number, *arguments)
        except Exception as error:
            raise self._explained(operation or name.rstrip("_"), error, *tensors) from None

    def _explained(self, operation: str, error: Exception, *tensors: torch.Tensor, op: str = "sum") -> Exception:
        """What an error of an op, or of its arguments, means to the user."""
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                return _unfit(tensor)
        if isinstance(error, OpArgumentError):
            return error
        _reduction(op)
        error = named_error(error)
        message = str(error)
        if isinstance(error, ValueError):
            found, _, remedy = message.partition("\n")
            return OpArgumentError(found, remedy)
        if not message.startswith(_FAILED):
            return error
        try:
            number, rank, waited_ms = self._ops.last_failure(self._number)
            kind = list(_REMEDIES)[number]
        except ValueError:  # another thread has closed the group
            kind, rank, waited_ms = "left", self.rank, 0
        return SharedMemoryCommError(
            f"{operation} of {self!r} failed: {message.removeprefix(_FAILED).splitlines()[0]}.",
            _REMEDIES[kind],
            rank=rank,
            operation=operation,
            waited_s=waited_ms / 1000,
            is_group_usable=kind == "mismatch",
        )


def _open(ops: Any, place: GroupPlace) -> int:
    """Create this rank's memory, get that of the others, and map all; returns the number of the native group."""
    isa = cpu_isa.chosen_isa()  # before there are descriptors to close
    size_bytes = ops.segment_bytes()
    facts, descriptors = shared_segments(ops, place, "ranks", size_bytes, is_locked=True)
    spin_ns = _SPIN_NS if place.size <= usable_cores(facts) else 0
    is_here = [int(each.process == facts[place.rank].process) for each in facts]
    timeout_ns = int(place.timeout_s * 1e9)
    number: int = ops.open_group(place.rank, descriptors, is_here, timeout_ns, spin_ns, isa)  # takes the descriptors
    if number < 0:
        raise space_error(size_bytes, -number)
    return number


def usable_cores(ranks: Sequence[MemoryFacts]) -> float:
    """How many ranks can run at once, by the cores and the CPU quotas that they have."""
    cores = len({core for facts in ranks for core in facts.cpus})
    return min([cores, *(facts.quota_cores for facts in ranks if facts.quota_cores is not None)])


def _close(ops: Any, number: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork's copy is no rank
        ops.close_group(number)


def _reduction(op: str) -> int:
    try:
        return REDUCTIONS[op]
    except (KeyError, TypeError):
        raise OpArgumentError(f"op is {op!r}.", f"Pass one of {', '.join(REDUCTIONS)}.") from None


def _unfit(tensor: Any) -> OpArgumentError:
    if not isinstance(tensor, torch.Tensor):
        return OpArgumentError(f"{tensor!r} is a {type(tensor).__name__}, not a tensor.", "Pass a torch.Tensor.")
    if not tensor.is_cpu:
        return OpArgumentError(f"A tensor is on device {tensor.device}.", "Pass CPU tensors, for example x.cpu().")
    return OpArgumentError(f"A tensor has layout {tensor.layout}.", "Pass x.to_dense().")
