"""A group of ranks on one host that share memory: what ``shm_comm``'s ``new_group()`` returns."""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from op_builder.errors import OpArgumentError, SharedMemoryCommError
from op_builder.ops.arguments import explained, untraced
from op_builder.ops.comm.shared_memory_meeting import Meeting, RankFacts
from op_builder.ops.comm.shared_memory_native import NativeGroups
from op_builder.ops.comm.shared_memory_python import quick_all_reduce, raise_interruption
from op_builder.ops.comm.shared_memory_segments import shared_segments, space_error
from op_builder.system import cpu_isa

REDUCTIONS = {"sum": 0, "max": 1, "min": 2, "avg": 3}

_SLOT_BYTES = 512 << 10
_ONE_SHOT_BYTES = 4 << 10
_SPIN_NS = 50_000

_KINDS = ("none", "died", "left", "gave_up", "late", "interrupted", "mismatch", "busy")
_REMEDIES = {
    "died": "See why it ended. This group is broken; make a new one of the ranks that live.",
    "left": "Close groups, and end ranks, when all have done their last collective.",
    "gave_up": "See that rank's error. This group is broken; make a new one.",
    "late": "See what it does instead, or allow more time: timeout_s= or ACCEL_COMM_TIMEOUT_S. This group is broken.",
    "interrupted": "This group is broken; make a new one.",
    "mismatch": "Have all ranks of a group call the same, in the same order. Nothing was changed; the group is usable.",
    "busy": "Do not use the group from the handler of a signal.",
}


class GroupPlace(NamedTuple):
    """Where in a group this process is, and where the group meets.

    Attributes:
        size, rank: of the group.
        name: for messages.
        store: a ``torch.distributed`` store.
        key: the group's own prefix in it.
        timeout_s: of each wait for another rank.
    """

    size: int
    rank: int
    name: str
    store: Any
    key: str
    timeout_s: float

    def meeting(self, name: str) -> Meeting:
        return Meeting(self.store, f"{self.key}/{name}", self.size, self.rank, self.timeout_s)


class SharedMemoryGroup:
    """Collectives between processes of one host, of CPU tensors that are contiguous.

    All ranks call the same collectives in the same order, with as many elements of the same type; where they do not,
    all raise. The results are the same on all ranks, bit for bit, and in every run. A rank that dies makes the others
    raise; the group is broken then, as it is after a timeout and after a signal's handler has raised (Ctrl-C).

    Attributes:
        size: number of ranks.
        rank: this one's, from 0.
        timeout_s: how long one wait for another rank may take.
    """

    def __init__(self, native: NativeGroups, place: GroupPlace) -> None:
        self.size = place.size
        self.rank = place.rank
        self.timeout_s = place.timeout_s
        self._native = native
        self._place = place
        self._symmetric_count = 0
        self._all_reduce = native.ops.all_reduce.default
        self._all_reduce_ = native.ops.all_reduce_.default
        self._number = _open(native, place)
        self._quickly = quick_all_reduce(native, self._number)
        self._closer = weakref.finalize(self, _close, native, self._number, os.getpid())
        meeting = place.meeting("ranks")
        try:
            self.barrier()  # when it is over, all have mapped all
        except BaseException:
            self.close()
            raise
        meeting.forget()

    def __repr__(self) -> str:
        name = f" {self._place.name!r}" if self._place.name else ""
        return f"<shared-memory group{name}, rank {self.rank} of {self.size}>"

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Reduce the tensors of all ranks, element by element, into each of them.

        Args:
            tensor: float32, bfloat16, float16 or int32. 16-bit floats are added up in float32 and rounded once.
            op: ``sum``, ``max``, ``min`` or ``avg`` (floats only). NaN wins in ``max`` and ``min``; int32 wraps around.

        Returns:
            ``tensor``.

        Raises:
            OpArgumentError: an argument does not fit; nothing was sent.
            SharedMemoryCommError: a rank did not come; what the tensor holds is undefined then.
        """
        return self.reduce_(tensor, _reduction(op))

    def reduce_(self, tensor: torch.Tensor, reduction: int) -> torch.Tensor:
        """:meth:`all_reduce` by the number of the reduction."""
        if torch.compiler.is_dynamo_compiling():
            self._all_reduce_(tensor, self._number, reduction)
            return tensor
        # Without torch's dispatcher, which takes longer than all the rest of a small all-reduce; for the plain case.
        done = self._quickly(tensor, reduction)
        if done is None:
            try:
                self._all_reduce_(_on_host(tensor), self._number, reduction)
            except (RuntimeError, ValueError) as error:
                self._explain("all_reduce", error, tensor)
        elif done is False:
            self._fail("all_reduce")
        return tensor

    def reduced(self, tensor: torch.Tensor, reduction: int) -> torch.Tensor:
        """:meth:`reduce_` into a new tensor."""
        if torch.compiler.is_dynamo_compiling():
            return self._all_reduce(tensor, self._number, reduction)  # type: ignore[no-any-return]
        if type(tensor) is torch.Tensor:
            result = torch.empty_like(tensor)
            done = self._quickly(tensor, result, reduction)
            if done is False:
                self._fail("all_reduce")
            if done is not None:
                return result
        try:
            return self._all_reduce(_on_host(tensor), self._number, reduction)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            self._explain("all_reduce", error, tensor)

    def reduce_scatter(self, out: torch.Tensor, input: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Reduce the inputs of all ranks; each gets the part of its rank.

        Args:
            out: filled in; of ``input.numel() / size`` elements, also this rank's part of ``input`` itself.
            input: of the types of :meth:`all_reduce`, left as it is.
            op: as for :meth:`all_reduce`.

        Returns:
            ``out``.

        Raises:
            OpArgumentError, SharedMemoryCommError: as for :meth:`all_reduce`.
        """
        self._call("reduce_scatter", (out, input), self._number, _reduction(op))
        return out

    def all_gather(self, out: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        """The inputs of all ranks one after another, in the order of the ranks, on each of them.

        Args:
            out: filled in; of ``size * input.numel()`` elements of input's type.
            input: of any type; also this rank's part of ``out``.

        Returns:
            ``out``.

        Raises:
            OpArgumentError, SharedMemoryCommError: as for :meth:`all_reduce`.
        """
        self._call("all_gather", (out, input), self._number)
        return out

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """The tensor of rank ``src``, of any type, on all ranks, in place.

        Returns:
            ``tensor``.

        Raises:
            OpArgumentError, SharedMemoryCommError: as for :meth:`all_reduce`.
        """
        if isinstance(src, bool) or not isinstance(src, int):
            raise OpArgumentError(f"src is {src!r}.", "Pass a rank of the group, an int.")
        self._call("broadcast_", (tensor,), self._number, src)
        return tensor

    @untraced
    def barrier(self) -> None:
        """Wait until all ranks are here.

        Raises:
            SharedMemoryCommError: one did not come.
        """
        self._call("barrier", (), self._number)

    @untraced
    def empty_symmetric(self, shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor in memory that all ranks see, so that collectives on it, or on views of it, move no byte twice.

        So it is with an all-reduce in place of more than 4 KiB, a reduce-scatter from it, an all-gather into it, and a
        broadcast; smaller ones are copied, as that is faster.

        All ranks call this together, with the same arguments, and use the same parts of it in a collective. The memory
        goes with the last view, and after :meth:`close` it is memory like any other.

        Returns:
            zeros of that shape.

        Raises:
            OpArgumentError: shape or dtype is none.
            SharedMemorySpaceError: there is not as much memory.
            SharedMemoryCommError: a rank did not come.
        """
        sizes = _checked_shape(shape)
        if not isinstance(dtype, torch.dtype):
            raise OpArgumentError(f"dtype is {dtype!r}.", "Pass a torch.dtype.")
        count = math.prod(sizes)
        if count == 0:
            return torch.zeros(sizes, dtype=dtype)
        size_bytes = count * dtype.itemsize
        with explained():
            number, *_ = self._native.failure(self._number)
        if _KINDS[number] not in ("none", "mismatch", "busy"):
            self._fail("empty_symmetric")
        memory = self._symmetric_count
        meeting = self._place.meeting(f"symmetric_{memory}")
        self._symmetric_count += 1
        descriptors = shared_segments(self._native, meeting, size_bytes, self.size)[1]
        try:
            address, number = self._native.attach(self._number, descriptors, size_bytes, memory)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if address:
            buffer = (ctypes.c_char * size_bytes).from_address(address)
            finalizer = weakref.finalize(buffer, self._native.release, self._number, address)
            finalizer.atexit = False  # tensors that live until the process ends may be read until then
        # All have it, or none: a rank without it would do other collectives than the others.
        lacking = torch.tensor([self.size if address else self.rank], dtype=torch.int32, device="cpu")
        lacking_rank = int(self.all_reduce(lacking, "min"))
        meeting.forget()
        if not address:
            raise space_error(size_bytes, number)
        if lacking_rank < self.size:
            raise SharedMemoryCommError(
                f"Rank {lacking_rank} cannot map {size_bytes} bytes of symmetric memory of each rank.",
                "See that rank's error. The group is usable.",
                rank=lacking_rank,
                operation="empty_symmetric",
                is_group_usable=True,
            )
        return torch.frombuffer(buffer, dtype=dtype, count=count).view(sizes)

    def close(self) -> None:
        """Leave the group. The others raise if they still wait for this rank; all ranks do this after their last call.
        A collective of another thread that waits for other ranks raises, too, within about half a second.

        Symmetric tensors stay usable as tensors. A second call does nothing.
        """
        self._closer()

    def _call(self, operation: str, tensors: tuple[torch.Tensor, ...], *numbers: int) -> None:
        op = getattr(self._native.ops, operation).default
        if torch.compiler.is_compiling():
            op(*tensors, *numbers)
            return
        try:
            for tensor in map(_on_host, tensors):
                if tensor.is_conj() or tensor.is_neg():
                    raise OpArgumentError("A tensor is a lazy view.", "Pass x.resolve_conj().resolve_neg().")
            op(*tensors, *numbers)
        except (RuntimeError, ValueError) as error:
            self._explain(operation.rstrip("_"), error, *tensors)

    def _explain(self, operation: str, error: Exception, *tensors: torch.Tensor) -> NoReturn:
        """Raise what an op's error means."""
        if isinstance(error, OpArgumentError):
            raise error
        for tensor in tensors:
            if tensor.layout != torch.strided:
                raise OpArgumentError(f"A tensor has layout {tensor.layout}.", "Pass x.to_dense().") from None
        if isinstance(error, ValueError):
            found, _, remedy = str(error).partition("\n")
            raise OpArgumentError(found, remedy) from None
        if not str(error).startswith("shm_comm: "):
            raise error
        self._fail(operation)

    def _fail(self, operation: str) -> NoReturn:
        """Raise what the last failure of the group means."""
        try:
            number, rank, _, waited_ms = self._native.failure(self._number)
            text = self._native.explain(self._number)
        except ValueError:
            raise_interruption(self._native)  # it may be the handler that has closed the group
            raise SharedMemoryCommError(
                f"{operation} of {self!r} was ended: another thread of this rank closed the group.",
                _REMEDIES["left"],
                rank=self.rank,
                operation=operation,
            ) from None
        kind = _KINDS[number]
        if kind == "interrupted":
            raise_interruption(self._native)
        raise SharedMemoryCommError(
            f"{operation} of {self!r} failed: {text}.",
            _REMEDIES.get(kind, ""),
            rank=rank,
            operation=operation,
            waited_s=waited_ms / 1000,
            is_group_usable=kind == "mismatch",
        ) from None


def _open(native: NativeGroups, place: GroupPlace) -> int:
    """Make this rank's memory, get that of the others, and map all: the number of the native group."""
    isa = cpu_isa.chosen_isa()  # before there are descriptors to close
    meeting = place.meeting("ranks")
    told, descriptors = shared_segments(native, meeting, native.segment_bytes(_SLOT_BYTES), place.size, is_locked=True)
    times_ns = (int(place.timeout_s * 1e9), _SPIN_NS if place.size <= usable_cores(told) else 0)
    here = [facts.is_in_this_process for facts in told]
    number = native.open(place.rank, descriptors, here, times_ns, (_SLOT_BYTES, _ONE_SHOT_BYTES), isa)
    if number < 0:
        raise space_error(native.segment_bytes(_SLOT_BYTES), -number)
    return number


def usable_cores(told: Sequence[RankFacts]) -> float:
    """How many ranks can run at once: on the cores that they may use, for as much time as each one's groups may."""
    cores = len({core for facts in told for core in facts.cpus})
    return min([cores, *(facts.quota_cores for facts in told if facts.quota_cores is not None)])


def _close(native: NativeGroups, number: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork's copy is no rank
        native.leave(number)
        native.forget(number)


def _reduction(op: str) -> int:
    try:
        return REDUCTIONS[op]
    except (KeyError, TypeError):
        raise OpArgumentError(f"op is {op!r}.", f"Pass one of {', '.join(REDUCTIONS)}.") from None


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, if its memory is the host's: torch would call a kernel that does nothing for one without memory."""
    if not isinstance(tensor, torch.Tensor):
        raise OpArgumentError(f"{tensor!r} is of type {type(tensor).__name__}.", "Pass a torch.Tensor.")
    if not tensor.is_cpu:
        raise OpArgumentError(f"A tensor is on device {tensor.device}.", "Pass CPU tensors, for example x.cpu().")
    return tensor


def _checked_shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else shape
    try:
        checked = tuple(sizes)
    except TypeError:
        checked = (-1,)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in checked):
        raise OpArgumentError(f"shape is {shape!r}.", "Pass sizes of at least 0.")
    return checked
