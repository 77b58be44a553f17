"""The module that ``CCLCommBuilder().load()`` returns."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from op_builder.cache.store import Cache
from op_builder.errors import CommunicationError, OpArgumentError
from op_builder.ops.comm.ccl_communicator import ADDRESS_BYTES, Address, CCLWork, Communicator
from op_builder.ops.declare import host_recipe, native_spec, system_check
from op_builder.plan import ForeignLibrary
from op_builder.spec import OpFamily
from op_builder.system.outcomes import CheckOutcome, checked
from op_builder.toolchains.oneccl import build_check, find_oneccl, load_check, open_oneccl, require_oneccl

DEFAULT_TIMEOUT_S = 1800.0  # torch.distributed's default for gloo

# The values of torch.distributed.ReduceOp, which other libraries' enumerations share.
_REDUCTIONS = {0: "sum", 1: "avg", 2: "product", 3: "min", 4: "max"}
_COLLECTIVES = ("broadcast", "all_reduce", "inference_all_reduce", "all_reduce_caching", "barrier")

Group = Sequence[int] | int | None


class CCLCommModule:
    """oneCCL's collectives, for a world of ranks and for groups of them.

    Rank 0 calls ``get_kvs_addr(0)`` and sends the result to the others, for example by a store; then all call
    :meth:`initialize`. A group is a list of ranks of the world, for which :meth:`initialize_sub_comm` was called; 0,
    None or an empty list is the world.
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        self._world: Communicator | None = None
        self._groups: dict[tuple[int, ...], Communicator] = {}

    # Connecting -----------------------------------------------------------------------------------

    def get_kvs_addr(self, rank: int) -> list[int]:
        """On rank 0 a new address of 256 uint8 values, where ranks meet; zeros on other ranks."""
        return self.get_sub_kvs_addr(rank == 0)

    def get_sub_kvs_addr(self, first: bool) -> list[int]:
        """The same for a group; ``first`` is true on the rank that makes the address."""
        return list(self.ops.make_address()) if first else [0] * ADDRESS_BYTES

    def initialize(self, size: int, rank: int, kvs: Address, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Connect all ranks; a CommunicationError if they do not connect in time.

        Args:
            kvs: rank 0's address, a uint8 tensor or a list.
            timeout_s: the limit of a collective of the world, and of groups made later, in seconds.
        """
        previous, self._world = self._world, Communicator(self.ops, size, rank, kvs, timeout_s)
        if previous is not None:
            previous.close()

    def initialize_sub_comm(self, size: int, rank: int, kvs: Address, ranks: Sequence[int]) -> None:
        """Connect the ranks of a group. Each of them calls it.

        Args:
            size, rank: the size of the group, and the rank of this process in it.
            kvs: the address that one of them got from :meth:`get_sub_kvs_addr`.
            ranks: the ranks of its members in the world, in the order of the group.
        """
        key = tuple(map(operator.index, ranks))
        if len(key) != size or len(set(key)) != size:
            raise OpArgumentError(
                f"Group {list(key)} does not list {size} distinct ranks.",
                "Pass as size the number of ranks, and each rank once.",
            )
        timeout_s = self._world.timeout_s if self._world is not None else DEFAULT_TIMEOUT_S
        previous, self._groups[key] = self._groups.get(key), Communicator(self.ops, size, rank, kvs, timeout_s)
        if previous is not None:
            previous.close()

    # Groups -------------------------------------------------------------------------------------

    def get_rank(self, group: Group = 0) -> int:
        """This process's rank in a group."""
        return self._communicator(group).rank

    def get_world_size(self, group: Group = 0) -> int:
        """The number of ranks of a group."""
        return self._communicator(group).size

    def get_available_coll(self) -> list[str]:
        """The names of the collectives of this module."""
        return list(_COLLECTIVES)

    # Collectives ---------------------------------------------------------------------------------
    # DeepSpeed names the last argument async, a reserved word; by name it is passed through **{"async": True}.

    def broadcast(
        self, tensor: torch.Tensor, src: int, group: Group = 0, async_op: bool = False, **keywords: bool
    ) -> CCLWork:
        """Send the tensor of rank ``src`` of the world to all ranks of a group.

        Returns:
            the work, which is finished unless ``async_op`` is true; then its ``wait()`` must be called.

        Raises:
            OpArgumentError: an argument is invalid.
            CommunicationError: it failed or did not finish in time.
        """
        comm = self._communicator(group)
        is_async = _is_async(async_op, keywords)
        return _wait_unless_async(comm.broadcast(tensor, self._place_of(src, group)), is_async)

    def all_reduce(
        self, tensor: torch.Tensor, op: Any, group: Group = 0, async_op: bool = False, **keywords: bool
    ) -> CCLWork:
        """Reduce ``tensor`` over a group, in place; returns and raises as :meth:`broadcast`.

        Args:
            op: sum, avg, product, min or max, as torch's ``ReduceOp`` or an object with its ``value``.
        """
        is_async = _is_async(async_op, keywords)
        return _wait_unless_async(self._communicator(group).all_reduce(tensor, _reduction(op)), is_async)

    def all_reduce_caching(
        self, tensor: torch.Tensor, op: Any, match_id: str, group: Group = 0, async_op: bool = False, **keywords: bool
    ) -> CCLWork:
        """:meth:`all_reduce`; calls with one ``match_id`` share a plan, and need tensors of one size and type."""
        is_async = _is_async(async_op, keywords)
        return _wait_unless_async(self._communicator(group).all_reduce(tensor, _reduction(op), str(match_id)), is_async)

    def inference_all_reduce(self, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        """Reduce ``tensor`` over the world, in place, and return it. Compiled, it is one torch op."""
        self._communicator(0).inference_all_reduce(tensor, _reduction(op))
        return tensor

    def barrier(self, group: Group = 0, async_op: bool = False, **keywords: bool) -> CCLWork:
        """Return when all ranks of a group have called it."""
        is_async = _is_async(async_op, keywords)
        return _wait_unless_async(self._communicator(group).barrier(), is_async)

    # Helpers -------------------------------------------------------------------------------------

    def _communicator(self, group: Group) -> Communicator:
        if self._world is None:
            raise CommunicationError(
                "ccl_comm is not initialized.", "Call initialize(size, rank, kvs) on every rank first."
            )
        key = _group_key(group)
        if not key or key == tuple(range(self._world.size)):
            return self._world
        if key not in self._groups:
            raise OpArgumentError(
                f"Group {list(key)} is unknown.", "Call initialize_sub_comm() with these ranks in this order first."
            )
        return self._groups[key]

    def _place_of(self, rank: int, group: Group) -> int:
        key = _group_key(group)
        if not key:
            return rank
        if rank not in key:
            raise OpArgumentError(f"Rank {rank} is not in group {list(key)}.", "Pass one of its ranks.")
        return key.index(rank)


def _is_async(async_op: bool, keywords: dict[str, bool]) -> bool:
    unknown = set(keywords) - {"async"}
    if unknown:
        raise TypeError(f"Unexpected keyword argument {', '.join(sorted(unknown))}.")
    return bool(keywords.get("async", async_op))


def _wait_unless_async(work: CCLWork, async_op: bool) -> CCLWork:
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


_RECIPE = host_recipe("ccl_comm", ("ccl/communicator.cpp",), optimized=(), link_flags=("-pthread",))
_NOT_ON = (
    ("linux", "oneCCL's C++ functions take the types of libstdc++, and ziglang's clang has libc++"),
    ("darwin", "oneCCL is for Linux"),
)


def _libraries() -> tuple[ForeignLibrary, ...]:
    """oneCCL from ``CCL_ROOT``, from PyPI's wheels or from the system."""
    found = find_oneccl()
    return () if found is None else (found.as_library,)


def _build_checks(cache: Cache) -> list[CheckOutcome]:
    return system_check(_NOT_ON) or [checked("oneCCL headers", lambda: build_check(cache.memo))]


def _load_checks(cache: Cache) -> list[CheckOutcome]:
    # Elsewhere the build's checks report the system.
    return [] if system_check(_NOT_ON) else [checked("oneCCL library", lambda: load_check(cache.memo))]


def _open_libraries(cache: Cache) -> None:
    open_oneccl(require_oneccl().library, cache.kernel_directory)


OP = OpFamily(
    "ccl_comm",
    "CCLCommBuilder",
    "collectives between CPU ranks through oneCCL",
    host=native_spec(
        _RECIPE,
        CCLCommModule,
        libraries=_libraries,
        checks=_build_checks,
        load_checks=_load_checks,
        open_libraries=_open_libraries,
    ),
    not_on=_NOT_ON,
)
