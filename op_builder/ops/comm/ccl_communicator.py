"""A communicator of oneCCL, and the work that its collectives return."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from op_builder.errors import CommunicationError, OpArgumentError
from op_builder.ops.arguments import bounded_int, explained
from op_builder.ops.comm.arguments import checked_rank

ADDRESS_BYTES = 256
Address = Sequence[int] | torch.Tensor

_SLICE_MS = 200  # a wait returns to Python this often, which then handles signals
_NATIVE_REDUCTIONS = {"sum": 0, "avg": 0, "product": 1, "min": 2, "max": 3}  # an average is a sum, divided afterwards

# Tensors that oneCCL may still write to, even after a timeout.
_in_flight: dict[tuple[int, int], torch.Tensor] = {}


class CCLWork:
    """A collective in progress. It keeps its tensor until oneCCL has finished."""

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
        """Whether it has finished, successfully or not."""
        with self._lock:
            if not self._is_done and self._failure is None:
                self._finished_within(0)
            return self._is_done or self._failure is not None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True when it has finished; the tensor then has its result.

        After ``timeout_s``, by default the communicator's, it raises a CommunicationError and breaks the communicator.
        """
        with self._lock:
            limit_s = self._comm.timeout_s if timeout_s is None else timeout_s
            deadline = time.monotonic() + limit_s
            while not self._is_done and self._failure is None:
                left_ms = max(0, math.ceil((deadline - time.monotonic()) * 1000))
                if self._finished_within(min(_SLICE_MS, left_ms)) or self._failure is not None:
                    break
                if left_ms == 0:
                    self._failure = self._comm.give_up(self._what, limit_s)
            if self._failure is not None:
                raise self._failure
            return True

    def _finished_within(self, timeout_ms: int) -> bool:
        try:
            if not self._comm.ops.wait(self._number, timeout_ms):
                return False
        except RuntimeError as error:  # oneCCL failed, and writes no more
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
    """Ranks that communicate through oneCCL. Tensors are contiguous CPU tensors of the types that oneCCL supports.

    Args:
        address: the meeting place of the ranks, the same bytes on all of them.
        timeout_s: the limit of a wait for a collective.
    """

    def __init__(self, ops: Any, size: int, rank: int, address: Address, timeout_s: float) -> None:
        self.ops = ops
        self.size = bounded_int("size", size, 1, None, "Pass at least 1.")
        self.rank = checked_rank("rank", rank, self.size)
        self.timeout_s = timeout_s
        self._failure: CommunicationError | None = None
        self._number: int | None = None
        self._number, meeting = ops.connect(self.size, self.rank, _checked_address(address))
        try:
            CCLWork(self, meeting, "meeting", None, 1).wait()
        except BaseException as error:
            self.close()
            if not isinstance(error, CommunicationError):
                raise
            raise CommunicationError(
                error.message,
                "Check that all ranks are running, have the same address, and can reach the host that created it "
                "(CCL_KVS_IFACE selects its network interface).",
            ) from error

    def all_reduce(self, tensor: torch.Tensor, op: str, match_id: str = "") -> CCLWork:
        """Start reducing ``tensor`` over all ranks, in place.

        Args:
            op: sum, product, min or max; avg for floating-point tensors.
            match_id: oneCCL reuses its plan for later calls with this name.
        """
        number = self._require_open()
        is_average = op == "avg"
        if is_average and not tensor.is_floating_point():
            raise OpArgumentError(f"avg does not support {tensor.dtype}.", "Reduce with sum, then divide.")
        started = self._start(self.ops.all_reduce, tensor, number, _NATIVE_REDUCTIONS[op], match_id)
        return CCLWork(self, started, f"all_reduce ({op})", tensor, self.size if is_average else 1)

    def broadcast(self, tensor: torch.Tensor, src: int) -> CCLWork:
        """Start sending the tensor of rank ``src`` of this communicator to all ranks."""
        number = self._require_open()
        checked_rank("src", src, self.size)
        plain = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
        return CCLWork(self, self._start(self.ops.broadcast, plain, number, src), f"broadcast from {src}", plain, 1)

    def barrier(self) -> CCLWork:
        """Start a barrier: it finishes when all ranks have called it."""
        return CCLWork(self, self.ops.barrier(self._require_open()), "barrier", None, 1)

    def inference_all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce ``tensor`` in place. Compiled, it is one torch op, which no signal interrupts."""
        if not torch.compiler.is_compiling():
            self.all_reduce(tensor, op).wait()
            return
        number = self._require_open()
        timeout_ms = math.ceil(self.timeout_s * 1000)
        self._start(self.ops.inference_all_reduce, tensor, number, _NATIVE_REDUCTIONS[op], timeout_ms)
        if op == "avg":
            tensor.div_(self.size)

    def give_up(self, what: str, timeout_s: float) -> CommunicationError:
        """Mark the communicator as broken; returns the error to raise."""
        self._failure = CommunicationError(
            f"oneCCL's {what} on rank {self.rank} of {self.size} did not finish within {timeout_s:g} s. "
            "oneCCL does not report which rank is missing.",
            "Read the ranks' logs to find the one that ended or called another collective, then restart all ranks.",
        )
        return self._failure

    def failed(self, what: str, error: RuntimeError) -> CommunicationError:
        """The error for a collective that failed in oneCCL."""
        return CommunicationError(
            f"oneCCL's {what} failed on rank {self.rank} of {self.size}: {str(error).splitlines()[0]}",
            "Set CCL_LOG_LEVEL=info for details from oneCCL.",
        )

    def close(self) -> None:
        """Release the communicator. A second call does nothing."""
        number, self._number = self._number, None  # first, as two threads may close it
        if number is not None:
            self.ops.disconnect(number)

    def _require_open(self) -> int:
        if self._failure is not None:
            raise self._failure
        if self._number is None:
            raise CommunicationError("The communicator is closed.", "Create a new one.")
        return self._number

    def _start(self, op: Any, tensor: torch.Tensor, *arguments: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise OpArgumentError("The tensor is not in host memory.", "Pass a dense CPU tensor.")
        with explained(), torch.no_grad():
            return op(tensor, *arguments)


def _checked_address(address: Address) -> list[int]:
    listed = address.tolist() if isinstance(address, torch.Tensor) else list(address)
    if len(listed) != ADDRESS_BYTES or not all(isinstance(byte, int) and 0 <= byte < 256 for byte in listed):
        raise OpArgumentError(
            f"kvs has {len(listed)} elements.", f"Pass the {ADDRESS_BYTES} bytes that rank 0 got from get_kvs_addr(0)."
        )
    if not any(listed):
        raise OpArgumentError("kvs is all zeros.", "Pass this rank what rank 0 got from get_kvs_addr(0).")
    return listed
