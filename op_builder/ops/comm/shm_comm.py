"""The module that ``ShareMemCommBuilder().load()`` returns."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from op_builder import env
from op_builder.errors import IncompatibleOpError, OpArgumentError
from op_builder.ops.arguments import bounded_int, untraced
from op_builder.ops.comm.arguments import checked_rank, checked_timeout
from op_builder.ops.comm.shared_memory_group import SharedMemoryGroup
from op_builder.ops.comm.shared_memory_meeting import GroupPlace, default_store
from op_builder.ops.declare import host_recipe, native_spec, system_check
from op_builder.spec import OpFamily
from op_builder.system.outcomes import CheckOutcome, checked


class ShareMemCommModule:
    """Collectives between the ranks of one host, through shared memory."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        self._default: SharedMemoryGroup | None = None
        self._store: Any = None
        self._used_keys: dict[tuple[str, int], int] = {}

    @untraced
    def initialize(self, size: int, rank: int) -> None:
        """Make the group that :meth:`inference_all_reduce` uses. It returns when all ranks have called it.

        A second call with the same values does nothing, and with others raises. Errors are those of :meth:`new_group`.
        """
        if self._default is not None:
            if (size, rank) != (self._default.size, self._default.rank):
                raise OpArgumentError(
                    f"This process is rank {self._default.rank} of {self._default.size}, not {rank!r} of {size!r}.",
                    "Make other groups with new_group().",
                )
            return
        self._default = self.new_group(size, rank, name="default")

    def inference_all_reduce(self, t: torch.Tensor) -> torch.Tensor:
        """The sum of the tensors of all ranks, as a new tensor; raises as :meth:`SharedMemoryGroup.all_reduce`.

        A torch op, also inside ``torch.compile``. It has no backward.
        """
        if self._default is None:
            raise _uninitialized()
        return self._default.reduced(t)

    def inference_all_reduce_(self, t: torch.Tensor) -> torch.Tensor:
        """:meth:`inference_all_reduce` in place; returns ``t``."""
        if self._default is None:
            raise _uninitialized()
        return self._default.all_reduce(t)

    def vector_kernel_level(self) -> int:
        """2: the kernels support float32, bfloat16 and float16. DeepSpeed calls this; 1 means float32 only."""
        return 2

    @untraced
    def new_group(
        self,
        size: int,
        rank: int,
        *,
        store: Store | None = None,
        name: str = "",
        timeout_s: float | None = None,
    ) -> SharedMemoryGroup:
        """Make a group of ``size`` processes of this host, of which this is ``rank``. All call it together.

        Args:
            store: where the ranks find each other; by default the store of ``torch.distributed``'s default process
                group, else one at MASTER_ADDR:MASTER_PORT.
            name: the same on all ranks. Groups of different ranks on one store need different names; the same ranks may
                make several groups of one name, in the same order.
            timeout_s: the limit of a wait for another rank; by default ``ACCEL_COMM_TIMEOUT_S``.

        Raises:
            OpArgumentError: a number is out of range, or a store is missing.
            SharedMemoryCommError: a rank did not join in time, or is on another host.
            SharedMemorySpaceError: there is not enough memory.
        """
        size = bounded_int("size", size, 1, 1024, "Pass the number of ranks, from 1 to 1024.")
        rank = checked_rank("rank", rank, size)
        patience_s = checked_timeout(env.ACCEL_COMM_TIMEOUT_S.get() if timeout_s is None else timeout_s)
        if store is None and size > 1:
            store = self._store = self._store or default_store(rank, patience_s)
        # Groups of one name are numbered, so their keys differ.
        key = f"accel_shm_comm/{name}/{size}"
        number = self._used_keys.get((key, rank), 0)  # by rank, too: ranks may be threads
        self._used_keys[key, rank] = number + 1
        return SharedMemoryGroup(self.ops, GroupPlace(size, rank, name, store, f"{key}/{number}", patience_s))


def _uninitialized() -> OpArgumentError:
    return OpArgumentError("shm_comm is not initialized.", "Call initialize(size, rank) on all ranks first.")


def shared_memory_check() -> str:
    """This process can create shared memory and seal it."""
    if not hasattr(os, "memfd_create"):
        return "not checked, because this Python lacks os.memfd_create()"
    try:
        os.close(os.memfd_create("accel_shm_comm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        raise IncompatibleOpError(
            f"memfd_create(2) is refused: {error.strerror}.",
            "Allow it in the sandbox, for example in its seccomp profile, or use gloo.",
        ) from None
    return "memfd_create(2) works"


def _load_checks(_: object) -> list[CheckOutcome]:
    return system_check(_NOT_ON) or [checked("shared memory", shared_memory_check)]


_NOT_ON = (("darwin", "it needs memfd_create(2) and futex(2) of Linux"),)
# Only these two files contain loops over data.
_LOOPS = ("comm/reduce.cpp", "comm/collectives.cpp")

OP = OpFamily(
    "shm_comm",
    "ShareMemCommBuilder",
    "collectives between the CPU ranks of one host through shared memory",
    host=native_spec(
        host_recipe("shm_comm", (*_LOOPS, "comm/group.cpp", "comm/segment.cpp", "cpu/isa.cpp"), optimized=_LOOPS),
        ShareMemCommModule,
        load_checks=_load_checks,
    ),
    not_on=_NOT_ON,
)
