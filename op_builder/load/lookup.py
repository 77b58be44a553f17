"""The facts of this machine and process about one op, for :mod:`op_builder.load.resolve`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from op_builder import env
from op_builder.cache.key import COMPILER_PARTS, PlanKey, Roots, plan_key
from op_builder.cache.machine import ThisMachine
from op_builder.cache.store import CHANGED, Cache, Entry
from op_builder.errors import AccelError
from op_builder.load.open import opened_entries
from op_builder.load.resolve import Candidate
from op_builder.messages import warn_once
from op_builder.plan import BuildPlan, PlanFacts
from op_builder.spec import OpSpec
from op_builder.system.computed_once import computed_once
from op_builder.system.outcomes import Failed, Rejection, guarded, rejection_of
from op_builder.toolchains.toolset import Toolset, find_toolset

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome
    from op_builder.system.target import Target

logger = logging.getLogger(__name__)

_CHANGED_KEY = Rejection("Its sources, flags or compilers have changed since it was built.")
_thread = threading.local()


class Planned(NamedTuple):
    """An op's plan, and what identifies its binary on this machine.

    Attributes:
        toolset: the compilers; None if one is missing.
        key: the first stage of the key.
        roots: the directories that the headers of entries are named relative to.
    """

    plan: BuildPlan
    toolset: Toolset | None
    key: PlanKey
    roots: Roots


class Lookup:
    """What is known about an op: its plan and key, its checks and its binaries, each found once, when it is needed.

    Args:
        target: the platform to build for; None for this machine.
        namespace: torch namespace for a library that registers its ops when it is opened.
        to_load: whether the op is to be loaded here, so that ``ACCEL_JIT`` and the checks of loading count.
    """

    def __init__(
        self,
        spec: OpSpec,
        cache: Cache,
        *,
        target: Target | None = None,
        namespace: str | None = None,
        to_load: bool = True,
    ) -> None:
        self.spec = spec
        self.cache = cache
        self.machine = ThisMachine()
        self.unavailable = spec.unavailable
        self.is_python = spec.python is not None
        self._facts = PlanFacts(cache.memo, target, namespace=namespace)
        self._to_load = to_load
        self._any_archs: BuildPlan | None = None
        self._error: AccelError | None = None

    @computed_once
    def planned(self) -> Planned:
        """The plan with its tools and key; compiles nothing, and writes only memos.

        Raises:
            AccelError: the same one each time, if the plan cannot be made.
        """
        if self._error is not None:
            raise self._error
        try:
            plan, memo = self.plan_for(None), self.cache.memo
            try:
                toolset = find_toolset(plan, memo)
            except AccelError as error:
                toolset = None
                if env.CXX.raw() is not None:  # the user requested a compiler that will not be used
                    text = f"{error.message} Existing builds of any compiler are used instead. {error.remedy}"
                    warn_once(logger, text)
            return Planned(plan, toolset, plan_key(plan, toolset, memo), Roots.of(plan))
        except AccelError as error:
            self._error = error
            raise

    @property
    def any_compiler(self) -> bool:
        """Whether binaries of every compiler are used, because this machine lacks one."""
        return self.planned.toolset is None

    def plan_for(self, cuda_archs: tuple[str, ...] | None) -> BuildPlan:
        """The plan for the CUDA architectures of an existing binary, which needs no CUDA toolkit; None detects them."""
        if self._any_archs is not None:
            return self._any_archs
        plan = self.spec.plan(self._facts._replace(cuda_archs=cuda_archs))
        if not plan.uses_cuda:
            self._any_archs = plan
        return plan

    def to_build(self) -> tuple[BuildPlan, PlanKey, Toolset]:
        """What the engine builds from.

        Raises:
            ToolchainError, MissingCUDAException: a compiler is missing.
        """
        plan, toolset, key, _ = self.planned
        return plan, key, toolset or find_toolset(plan, self.cache.memo)

    @computed_once
    def build_checks(self) -> list[CheckOutcome]:
        """The outcomes of the checks of everything that compiling the op needs."""
        return _outcomes("build_checks()", lambda: self.spec.build_checks(self.cache, lambda: self.planned.plan))

    @computed_once
    def load_checks(self) -> list[CheckOutcome]:
        """The outcomes of the checks of everything that loading the built op needs."""
        return _outcomes("load_checks()", lambda: self.spec.load_checks(self.cache))

    # What resolve() asks ----------------------------------------------------------------------

    def opened(self) -> Iterator[tuple[Entry, Rejection | None]]:
        for entry in opened_entries(self.spec.name):
            try:
                allowed = COMPILER_PARTS if self.any_compiler else ()
                same = self.planned.key.differs_only_in(entry.manifest.key_parts, allowed)
            except AccelError as error:  # a wheel may contain binaries without their sources
                yield entry, Rejection.of(error)
                continue
            unchanged = same and entry.manifest.key.headers_unchanged(
                self.planned.roots, self.cache.memo, any_system=self.any_compiler
            )
            yield entry, None if unchanged else CHANGED if same else _CHANGED_KEY

    def prebuilt(self) -> Iterator[Candidate]:
        if not any(os.path.isdir(root) for root in self.spec.prebuilt_roots):
            return
        from op_builder.load.prebuilt import find_prebuilt

        yield from find_prebuilt(self.spec, self.plan_for)

    def cached(self) -> Iterator[tuple[Entry, Rejection | None]]:
        try:
            plan, _, key, roots = self.planned
        except AccelError as error:
            logger.debug("'%s' has no plan: %s", self.spec.name, error.message)
            return
        yield from self.cache.matching(key, plan.op, roots, any_compiler=self.any_compiler)

    def loading(self) -> Rejection | None:
        return rejection_of(self.load_checks) if self._to_load else None

    def building(self) -> Rejection | None:
        planned = None if self.is_python else self.planned
        forbidden = self._forbidden(planned) if self._to_load and planned is not None else None
        if forbidden is not None:
            return self.loading() or forbidden
        checks = [*self.build_checks, *(self.load_checks if self._to_load else ())]
        return rejection_of(checks) or rejection_of(self._last_checks())

    def _last_checks(self) -> list[CheckOutcome]:
        """What an author's own is_compatible() says, and what building needs that an author's own checks may omit."""
        own = guarded("is_compatible()", self.spec.own_rejection)
        if isinstance(own, Rejection):
            return [Failed("is_compatible()", own)]
        tools = guarded("tools", self.to_build) if own is None and not self.is_python else own
        return [tools] if isinstance(tools, Failed) else []

    def _forbidden(self, planned: Planned) -> Rejection | None:
        """Why nothing may be compiled: names what would be, with which tools, and the nearest existing entry."""
        try:
            may_compile = env.ACCEL_JIT.get()
        except AccelError as error:
            return Rejection.of(error)
        if is_listing():
            why, remedy = "nothing is compiled while installed ops are listed", "Load the op when it is first used."
        elif not may_compile:
            why = "ACCEL_JIT=0 forbids compiling when an op is loaded"
            remedy = "Unset ACCEL_JIT, or use a cache directory or a wheel that contains the op."
        else:
            return None
        from op_builder.cache.compare import nearest_miss

        cache, (plan, toolset, key, roots) = self.cache, planned
        tools = " and ".join(toolset.identities.values()) if toolset is not None else "a compiler"
        _, differences = nearest_miss(cache.entries(plan.op), key, roots, cache.memo)
        sources = ", ".join(dict.fromkeys(source.label for source in plan.sources))
        nearest = f" The nearest entry differs in: {'; '.join(differences)}." if differences else ""
        return Rejection(
            f"It is neither prebuilt nor in the cache {cache.root}, and {why}. It would have compiled {sources} with "
            f"{tools}.{nearest}",
            remedy,
        )


def _outcomes(name: str, make: Callable[[], list[CheckOutcome]]) -> list[CheckOutcome]:
    """The outcomes of an author's checks, which may raise anything."""
    found = guarded(name, lambda: list(make()))  # it may be a generator
    return [found] if isinstance(found, Failed) else found


@contextmanager
def without_compiling() -> Iterator[None]:
    """Reject compiling in this thread: other packages' modules may load their ops when they are imported."""
    before = is_listing()
    _thread.is_listing = True
    try:
        yield
    finally:
        _thread.is_listing = before


def is_listing() -> bool:
    """Whether this thread is inside :func:`without_compiling`."""
    return getattr(_thread, "is_listing", False)
