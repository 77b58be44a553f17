"""The facts of this machine and process about one op, for :mod:`op_builder.load.resolve`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


class Lookup:
    """What is known about an op: its plan, its tools, its key and its binaries, each found once, when it is needed.

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
        self._plans: dict[tuple[str, ...], BuildPlan] = {}
        self._plan_error: AccelError | None = None

    @computed_once
    def plan(self) -> BuildPlan:
        """The plan; raises the same AccelError each time if it cannot be made."""
        if self._plan_error is not None:
            raise self._plan_error
        known = self._plans.get(())
        try:
            return self.spec.plan(self._facts) if known is None or known.uses_cuda else known
        except AccelError as error:
            self._plan_error = error
            raise

    def plan_for(self, cuda_archs: tuple[str, ...]) -> BuildPlan:
        """The plan for the CUDA architectures of an existing binary; needs no CUDA toolkit."""
        if not cuda_archs and "plan" in self.__dict__ and not self.plan.uses_cuda:
            return self.plan
        if cuda_archs not in self._plans:
            self._plans[cuda_archs] = self.spec.plan(self._facts._replace(cuda_archs=cuda_archs))
        return self._plans[cuda_archs]

    @computed_once
    def toolset(self) -> Toolset | None:
        """The compilers; None if one is missing."""
        try:
            return find_toolset(self.plan, self.cache.memo)
        except AccelError as error:
            if env.CXX.raw() is not None:  # the user requested a compiler that will not be used
                warn_once(logger, f"{error.message} Existing builds of any compiler are used instead. {error.remedy}")
            return None

    def require_toolset(self) -> Toolset:
        """The compilers.

        Raises:
            ToolchainError, MissingCUDAException: one is missing.
        """
        return self.toolset or find_toolset(self.plan, self.cache.memo)

    @computed_once
    def key(self) -> PlanKey:
        """The first stage of the op's key; compiles nothing and writes only memos."""
        return plan_key(self.plan, self.toolset, self.cache.memo)

    @computed_once
    def roots(self) -> Roots:
        """The directories that the headers of entries are named relative to."""
        return Roots.of(self.plan)

    @computed_once
    def build_checks(self) -> list[CheckOutcome]:
        """The outcomes of the checks of everything that compiling the op needs."""
        return _outcomes("build_checks()", lambda: self.spec.build_checks(self.cache, lambda: self.plan))

    @computed_once
    def load_checks(self) -> list[CheckOutcome]:
        """The outcomes of the checks of everything that loading the built op needs."""
        return _outcomes("load_checks()", lambda: self.spec.load_checks(self.cache))

    # What resolve() asks ----------------------------------------------------------------------

    def opened(self) -> Iterator[tuple[Entry, Rejection | None]]:
        for entry in opened_entries(self.spec.name):
            try:
                any_compiler = self.toolset is None
                same = self.key.differs_only_in(entry.manifest.key_parts, COMPILER_PARTS if any_compiler else ())
            except AccelError as error:  # a wheel may contain binaries without their sources
                yield entry, Rejection.of(error)
                continue
            unchanged = same and entry.manifest.key.headers_unchanged(
                self.roots, self.cache.memo, any_system=any_compiler
            )
            yield entry, None if unchanged else CHANGED if same else _CHANGED_KEY

    def prebuilt(self) -> Iterator[Candidate]:
        if not any(os.path.isdir(root) for root in self.spec.prebuilt_roots):
            return
        from op_builder.load.prebuilt import find_prebuilt

        yield from find_prebuilt(self.spec, self.plan_for)

    def cached(self) -> Iterator[tuple[Entry, Rejection | None]]:
        try:
            key, roots = self.key, self.roots
        except AccelError as error:
            logger.debug("'%s' has no plan: %s", self.spec.name, error.message)
            return
        yield from self.cache.matching(key, self.plan.op, roots, any_compiler=self.toolset is None)

    def loading(self) -> Rejection | None:
        return rejection_of(self.load_checks) if self._to_load else None

    def building(self) -> Rejection | None:
        plan = None if self.is_python else self.plan
        forbidden = self._forbidden(plan) if self._to_load and plan is not None else None
        if forbidden is not None:
            return self.loading() or forbidden
        checks = [*self.build_checks, *(self.load_checks if self._to_load else ())]
        return rejection_of(checks) or rejection_of(self._last_checks())

    def _last_checks(self) -> list[CheckOutcome]:
        """What an author's own is_compatible() says, and what building needs that an author's own checks may omit."""
        own = guarded("is_compatible()", self.spec.own_rejection)
        if isinstance(own, Rejection):
            return [Failed("is_compatible()", own)]
        tools = guarded("tools", self.require_toolset) if own is None and not self.is_python else own
        return [tools] if isinstance(tools, Failed) else []

    def _forbidden(self, plan: BuildPlan) -> Rejection | None:
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

        cache = self.cache
        tools = " and ".join(self.toolset.identities.values()) if self.toolset is not None else "a compiler"
        _, differences = nearest_miss(cache.entries(plan.op), self.key, self.roots, cache.memo)
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
