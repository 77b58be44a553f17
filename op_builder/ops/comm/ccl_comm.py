"""The module that ``CCLCommBuilder().load()`` returns."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from op_builder.errors import CommunicationError, OpArgumentError
from op_builder.ops.arguments import explained

ADDRESS_BYTES = 256
DEFAULT_TIMEOUT_S = 1800.0  # as torch.distributed has it for gloo

_SLICE_MS = 200  # how long a wait lasts until Python may act on a signal
# The values of torch.distributed.ReduceOp, and of the enumerations made after it.
_REDUCTIONS = {0: "sum", 1: "avg", 2: "product", 3: "min", 4: "max"}
_NATIVE_REDUCTIONS = {"sum": 0, "avg": 0, "product": 1, "min": 2, "max": 3}  # an average is a sum, and then divided
_COLLECTIVES = ("broadcast", "all_reduce", "inference_all_reduce", "all_reduce_caching", "barrier")

Address = Sequence[int] | torch.Tensor
Group = Sequence[int] | int | None


# Tensors that oneCCL may still write to, also after a wait was given up.
_in_flight: dict[tuple[int, int], torch.Tensor] = {}


class CCLWork:
    """A collective that was started. Its tensor is kept until it has finished."""

    def __init__(self, comm: Communicator, number: int, what: str, tensor: torch.Tensor | None, average: int) -> None:
        self._comm = comm
        self._number = number
        self._what = what
        self._average = average
        self._key = (id(comm.ops), number)
        if tensor is not None:
            _in_flight[self._key] = tensor
        self._is_done = False
        self._failure: CommunicationError | None = None
        self._lock = threading.Lock()

    def is_completed(self) -> bool:
        """Whether it has finished."""
        with self._lock:
            return self._is_done or self._failure is not None or self._finished_within(0)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True when it has finished; the tensor then has its result.

        Args:
            timeout_s: how long at most, by default the communicator's.

        Raises:
            CommunicationError: it did not finish; its communicator cannot be used any more.
        """
        with self._lock:
            longest_s = self._comm.timeout_s if timeout_s is None else timeout_s
            ends = time.monotonic() + longest_s
            while not self._is_done and self._failure is None:
                left_ms = max(0, math.ceil((ends - time.monotonic()) * 1000))
                if self._finished_within(min(_SLICE_MS, left_ms)) or self._failure is not None:
                    break
                if left_ms == 0:
                    self._failure = self._comm.give_up(self._what, longest_s)
                elif self._comm.watch is not None:
                    self._comm.watch()
            if self._failure is not None:
                raise self._failure
            return True

    def _finished_within(self, timeout_ms: int) -> bool:
        try:
            if not self._comm.ops.wait(self._number, timeout_ms):
                return False
        except RuntimeError as error:  # what oneCCL throws, and then writes no more
            _in_flight.pop(self._key, None)
            self._failure = self._comm.failed(self._what, error)
            return False
        tensor = _in_flight.pop(self._key, None)
        if tensor is not None and self._average > 1:
            with torch.no_grad():
                tensor.div_(self._average)
        self._is_done = True
        return True


class Communicator:
    """Some ranks that work together through oneCCL. Tensors are contiguous CPU tensors of the types oneCCL has.

    Args:
        ops: the namespace of torch ops that the binding registered.
        size, rank: how many there are, and which this process is.
        address: where they meet; the same bytes on all ranks.
        timeout_s: how long a collective is waited for.
        watch: called some times a second while one is waited for; what it raises ends the wait, and nothing else.
    """

    def __init__(
        self,
        ops: Any,
        size: int,
        rank: int,
        address: Address,
        timeout_s: float,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self.ops = ops
        self.size = _count("size", size)
        self.rank = _place("rank", rank, self.size)
        self.timeout_s = timeout_s
        self.watch = watch
        self._failure: CommunicationError | None = None
        self._number: int | None = None
        self._number, meeting = ops.connect(self.size, self.rank, _address(address))
        try:
            CCLWork(self, meeting, "meeting", None, 1).wait()
        except BaseException as error:
            self.close()
            if not isinstance(error, CommunicationError):
                raise
            raise CommunicationError(
                error.message,
                "See that all ranks have the same address, are running, and reach the host that made it "
                "(CCL_KVS_IFACE names the network interface to use there).",
            ) from error

    def all_reduce(self, tensor: torch.Tensor, op: str, match_id: str = "") -> CCLWork:
        """Start to reduce ``tensor`` over all ranks, in place.

        Args:
            op: sum, product, min, max; or avg, for floating-point tensors.
            match_id: keeps what oneCCL plans for the next call of that name.
        """
        number = self._require_open()
        is_average = op == "avg"
        if is_average and not tensor.is_floating_point():
            raise OpArgumentError(f"avg of {tensor.dtype} is not a whole number.", "Reduce by sum, and divide.")
        started = self._start(self.ops.all_reduce, tensor, number, _NATIVE_REDUCTIONS[op], match_id)
        return CCLWork(self, started, f"all_reduce ({op})", tensor, self.size if is_average else 1)

    def broadcast(self, tensor: torch.Tensor, src: int) -> CCLWork:
        """Start to give all ranks the tensor of rank ``src`` of this communicator."""
        number = self._require_open()
        _place("src", src, self.size)
        plain = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
        return CCLWork(self, self._start(self.ops.broadcast, plain, number, src), f"broadcast from {src}", plain, 1)

    def barrier(self) -> CCLWork:
        """Start to wait until all ranks have called it."""
        return CCLWork(self, self.ops.barrier(self._require_open()), "barrier", None, 1)

    def inference_all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce ``tensor`` in place: compiled, in one torch op, which no signal ends before ``timeout_s``."""
        if not torch.compiler.is_compiling():
            self.all_reduce(tensor, op).wait()
            return
        number = self._require_open()
        timeout_ms = math.ceil(self.timeout_s * 1000)
        self._start(self.ops.inference_all_reduce, tensor, number, _NATIVE_REDUCTIONS[op], timeout_ms)
        if op == "avg":
            tensor.div_(self.size)

    def give_up(self, what: str, timeout_s: float) -> CommunicationError:
        """End the wait for a collective and refuse later ones; returns the error to raise."""
        self._failure = CommunicationError(
            f"oneCCL's {what} on rank {self.rank} of {self.size} did not finish within {timeout_s:g} s. "
            "oneCCL does not report which rank is missing.",
            "See which process has ended or calls something else; all ranks need a new communicator.",
        )
        return self._failure

    def failed(self, what: str, error: RuntimeError) -> CommunicationError:
        """The error for a collective that oneCCL reports as failed."""
        return CommunicationError(
            f"oneCCL's {what} failed on rank {self.rank} of {self.size}: {str(error).splitlines()[0]}",
            "Set CCL_LOG_LEVEL=info for details from oneCCL.",
        )

    def close(self) -> None:
        """Give the communicator back; once more does nothing."""
        number, self._number = self._number, None  # first, as two threads may close it: one that waits, and its user's
        if number is not None:
            self.ops.disconnect(number)

    def _require_open(self) -> int:
        if self._failure is not None:
            raise self._failure
        if self._number is None:
            raise CommunicationError("The communicator was closed.", "Make a new one.")
        return self._number

    def _start(self, op: Any, tensor: torch.Tensor, *arguments: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise OpArgumentError("oneCCL is given a tensor that is not in host memory.", "Pass a dense CPU tensor.")
        with explained(), torch.no_grad():
            return op(tensor, *arguments)


class CCLCommModule:
    """oneCCL's collectives, for one world of ranks and groups of them.

    One rank calls ``get_kvs_addr(0)`` and passes the result to the others, by a store or a file; then all call
    :meth:`initialize`. A group is a list of ranks of the world; 0, None or an empty list is the world. Except for
    the world, :meth:`initialize_sub_comm` must have been called for it.

    Args:
        ops: the namespace of torch ops that the binding registered.
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        self._world: Communicator | None = None
        self._groups: dict[tuple[int, ...], Communicator] = {}

    # Meeting -------------------------------------------------------------------------------------

    def get_kvs_addr(self, rank: int) -> list[int]:
        """On rank 0 a new address where ranks meet, of 256 uint8; on others as many zeros, to be filled."""
        return self.get_sub_kvs_addr(rank == 0)

    def get_sub_kvs_addr(self, first: bool) -> list[int]:
        """The same for a group: a new address where ``first`` is true."""
        return list(self.ops.make_address()) if first else [0] * ADDRESS_BYTES

    def initialize(self, size: int, rank: int, kvs: Address, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Meet all ranks. Every rank calls it with the address that rank 0 got.

        Args:
            kvs: a uint8 tensor or a list.
            timeout_s: how long collectives of the world, and of groups made later, are waited for.

        Raises:
            OpArgumentError: an argument does not fit.
            CommunicationError: the ranks did not meet.
        """
        before, self._world = self._world, self.new_communicator(size, rank, kvs, timeout_s=timeout_s)
        if before is not None:
            before.close()

    def initialize_sub_comm(self, size: int, rank: int, kvs: Address, ranks: Sequence[int]) -> None:
        """Meet the ranks of a group. Each of them calls it.

        Args:
            size, rank: of the group, and of this process in it.
            kvs: the address that one of them got from :meth:`get_sub_kvs_addr`.
            ranks: the group's ranks in the world, in their order in the group.
        """
        key = tuple(map(operator.index, ranks))
        if len(key) != size or len(set(key)) != size:
            raise OpArgumentError(f"Group {list(key)} does not list {size} distinct ranks.", "Correct size or ranks.")
        timeout_s = self._world.timeout_s if self._world is not None else DEFAULT_TIMEOUT_S
        before, self._groups[key] = self._groups.get(key), self.new_communicator(size, rank, kvs, timeout_s=timeout_s)
        if before is not None:
            before.close()

    def new_communicator(
        self,
        size: int,
        rank: int,
        kvs: Address,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        watch: Callable[[], None] | None = None,
    ) -> Communicator:
        """A communicator of its own, beside the world and its groups; the arguments are those of its class."""
        return Communicator(self.ops, size, rank, kvs, timeout_s, watch)

    # What there is -------------------------------------------------------------------------------

    def get_rank(self, group: Group = 0) -> int:
        """This process's rank in a group."""
        return self._of(group).rank

    def get_world_size(self, group: Group = 0) -> int:
        """How many ranks a group has."""
        return self._of(group).size

    def get_available_coll(self) -> list[str]:
        """The names of the collectives of this module."""
        return list(_COLLECTIVES)

    # Collectives ---------------------------------------------------------------------------------
    # The last position is called async, a reserved word; so by name it also comes through **{"async": True}.

    def broadcast(
        self, tensor: torch.Tensor, src: int, group: Group = 0, async_op: bool = False, **keywords: bool
    ) -> CCLWork:
        """Give all ranks of a group the tensor of rank ``src`` of the world.

        Returns:
            the work, already done unless ``async_op``; then its ``wait()`` must be called.

        Raises:
            OpArgumentError: an argument does not fit.
            CommunicationError: it did not finish in time.
        """
        comm = self._of(group)
        is_async = _is_async(async_op, keywords)
        return _waited(comm.broadcast(tensor, self._place_of(src, group)), is_async)

    def all_reduce(
        self, tensor: torch.Tensor, op: Any, group: Group = 0, async_op: bool = False, **keywords: bool
    ) -> CCLWork:
        """Reduce ``tensor`` over a group, in place; returns and raises as :meth:`broadcast`.

        Args:
            op: torch's ``ReduceOp``, or an object with its ``value``: sum, avg, product, min or max.
        """
        is_async = _is_async(async_op, keywords)
        return _waited(self._of(group).all_reduce(tensor, _reduction(op)), is_async)

    def all_reduce_caching(
        self, tensor: torch.Tensor, op: Any, match_id: str, group: Group = 0, async_op: bool = False, **keywords: bool
    ) -> CCLWork:
        """:meth:`all_reduce` that keeps its plan under ``match_id``, for tensors of that size and type alone."""
        is_async = _is_async(async_op, keywords)
        return _waited(self._of(group).all_reduce(tensor, _reduction(op), str(match_id)), is_async)

    def inference_all_reduce(self, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        """Reduce ``tensor`` over the world, in place, and return it. Compiled, it is one torch op."""
        self._of(0).inference_all_reduce(tensor, _reduction(op))
        return tensor

    def barrier(self, group: Group = 0, async_op: bool = False, **keywords: bool) -> CCLWork:
        """Return when all ranks of a group have called it."""
        is_async = _is_async(async_op, keywords)
        return _waited(self._of(group).barrier(), is_async)

    # How -----------------------------------------------------------------------------------------

    def _of(self, group: Group) -> Communicator:
        if self._world is None:
            raise CommunicationError(
                "ccl_comm is not initialized.", "Call initialize(size, rank, kvs) on every rank first."
            )
        key = _group_key(group)
        if not key or key == tuple(range(self._world.size)):
            return self._world
        if key not in self._groups:
            raise OpArgumentError(
                f"There is no group {list(key)}.", "Call initialize_sub_comm() on its ranks first, in that order."
            )
        return self._groups[key]

    def _place_of(self, rank: int, group: Group) -> int:
        key = _group_key(group)
        if not key:
            return rank
        if rank not in key:
            raise OpArgumentError(f"Rank {rank} is not in the group {list(key)}.", "Name one of its ranks.")
        return key.index(rank)


def _is_async(async_op: bool, keywords: dict[str, bool]) -> bool:
    unknown = set(keywords) - {"async"}
    if unknown:
        raise TypeError(f"There is no argument {', '.join(sorted(unknown))}.")
    return bool(keywords.get("async", async_op))


def _waited(work: CCLWork, async_op: bool) -> CCLWork:
    if not async_op:
        work.wait()
    return work


def _group_key(group: Group) -> tuple[int, ...]:
    if group is None or isinstance(group, int):
        if group:
            raise OpArgumentError(f"group is {group!r}.", "Pass a list of ranks, or 0 for all.")
        return ()
    return tuple(map(operator.index, group))


def _reduction(op: Any) -> str:
    value = getattr(op, "value", op)
    inner = getattr(value, "op", value)  # torch's ReduceOp holds the enumeration's member
    number = getattr(inner, "value", inner)
    if isinstance(number, bool) or number not in _REDUCTIONS:
        raise OpArgumentError(f"op is {op!r}.", "Pass torch.distributed.ReduceOp.SUM, AVG, PRODUCT, MIN or MAX.")
    return _REDUCTIONS[number]


def _address(address: Address) -> list[int]:
    listed = address.tolist() if isinstance(address, torch.Tensor) else list(address)
    if len(listed) != ADDRESS_BYTES or not all(isinstance(byte, int) and 0 <= byte < 256 for byte in listed):
        raise OpArgumentError(
            f"kvs has {len(listed)} elements.", f"Pass the {ADDRESS_BYTES} bytes that rank 0 got from get_kvs_addr(0)."
        )
    if not any(listed):
        raise OpArgumentError("kvs is all zeros.", "Pass this rank what rank 0 got from get_kvs_addr(0).")
    return listed


def _count(name: str, value: int) -> int:
    number = operator.index(value)
    if number < 1:
        raise OpArgumentError(f"{name} is {number}.", "Pass at least 1.")
    return number


def _place(name: str, value: int, size: int) -> int:
    number = operator.index(value)
    if not 0 <= number < size:
        raise OpArgumentError(f"{name} is {number}, of {size} ranks.", f"Pass 0 to {size - 1}.")
    return number
