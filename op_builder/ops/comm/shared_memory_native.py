"""The native side of ``shm_comm``, by name: its collectives are torch ops, all else is one op that takes numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# By their numbers: csrc/kernels/cpu/isa.h.
_ISAS = ("baseline", "avx2", "avx512", "neon")


class NativeGroups:
    """What csrc/bindings/shm_comm.cpp offers; groups go by number.

    Args:
        ops: the namespace of torch ops that the binding registered.

    Raises:
        ValueError: (from any function of a group) it is closed, or another process's; the text has two lines, what
            was found and the remedy.
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        self._control = ops.control.default

    def know_python(self, addresses: Sequence[int]) -> None:
        self._control(0, addresses)

    def python_method(self) -> int:
        """The address of a PyMethodDef of an all-reduce, or 0."""
        return int(self._control(1, [])[0])

    def take_raised(self) -> Sequence[int]:
        """Type, value and traceback of the exception that ended a wait, the caller's now; zeros for none."""
        return tuple(self._control(2, []))

    def create_segment(self, size_bytes: int) -> tuple[int, int]:
        """A descriptor, or -1 and an errno."""
        descriptor, number = self._control(3, [size_bytes])
        return descriptor, number

    def segment_bytes(self, slot_bytes: int) -> int:
        """How much memory each rank of a group gives."""
        return int(self._control(4, [slot_bytes])[0])

    def open(
        self,
        rank: int,
        descriptors: Sequence[int],
        is_here: Sequence[bool],
        times_ns: tuple[int, int],
        sizes_bytes: tuple[int, int],
        isa: str,
    ) -> int:
        """The number of a new group, or -errno. It takes over the descriptors.

        Args:
            is_here: which ranks are threads of this process.
            times_ns: how long a wait may take, and how long of it to spin.
            sizes_bytes: of a slot, and up to which every rank reads all.
            isa: instruction set of the reductions.
        """
        facts = (rank, len(descriptors), *times_ns, *sizes_bytes, _ISAS.index(isa))
        return int(self._control(5, [*facts, *descriptors, *map(int, is_here)])[0])

    def leave(self, group: int) -> None:
        self._control(6, [group])

    def forget(self, group: int) -> None:
        self._control(7, [group])

    def attach(self, group: int, descriptors: Sequence[int], size_bytes: int, memory: int) -> tuple[int, int]:
        """The address of this rank's part of symmetric memory, or 0 and an errno; ``memory`` is its number on all."""
        address, number = self._control(8, [group, size_bytes, memory, *descriptors])
        return address, number

    def release(self, group: int, address: int) -> None:
        self._control(9, [group, address])

    def failure(self, group: int) -> tuple[int, int, int, int]:
        """Why a collective of the group failed last: kind, rank, for whom that rank gave up, ms waited."""
        kind, rank, culprit, waited_ms = self._control(10, [group])
        return kind, rank, culprit, waited_ms

    def explain(self, group: int) -> str:
        """The same in words."""
        return str(self.ops.explain(group))
