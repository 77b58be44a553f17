"""How ``load()`` works: already loaded, prebuilt, cache, JIT.

Each step that finds nothing logs the reason. The report calls the same functions.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from op_builder import env, paths
from op_builder.cache.key import COMPILER_PARTS, PlanKey, Roots, plan_key
from op_builder.cache.store import Cache, Entry
from op_builder.errors import AccelError, IncompatibleOpError, LoadError, ToolchainError
from op_builder.load import loader
from op_builder.plan import BuildPlan
from op_builder.toolchains.toolset import Toolset, find_toolset

if TYPE_CHECKING:
    from op_builder.engine.build import BuildOptions
    from op_builder.engine.ninja import Progress
    from op_builder.load.op import Op

logger = logging.getLogger(__name__)

_LISTING = "Nothing is compiled while installed ops are listed."
JIT_FORBIDDEN = "ACCEL_JIT=0 forbids compiling when an op is loaded."
JIT_REMEDY = "Unset ACCEL_JIT, or use a cache directory or a wheel that contains the op."
_thread = threading.local()


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)


class Request:
    """A request for one op: its plan, tools and key.

    Attributes:
        toolset: None if no compiler works; ``missing_tool`` then has the reason.
        roots: the directories that the headers of entries are named relative to.
    """

    def __init__(
        self, plan: BuildPlan, toolset: Toolset | None, missing_tool: AccelError | None, key: PlanKey, cache: Cache
    ) -> None:
        self.plan = plan
        self.toolset = toolset
        self.missing_tool = missing_tool
        self.key = key
        self.cache = cache
        self.roots = Roots.of(plan)

    @staticmethod
    def of(op: Op) -> Request:
        """The request for ``op``; compiles nothing and writes only memos."""
        plan, cache = op.plan(), op.cache
        toolset: Toolset | None = None
        missing: AccelError | None = None
        try:
            toolset = find_toolset(plan, cache.memo)
        except AccelError as error:
            missing = error
            if env.CXX.get() is not None:  # the user requested a compiler that will not be used
                _warn_once(f"{error.message} Existing builds of any compiler are used instead. {error.remedy}")
        return Request(plan, toolset, missing, plan_key(plan, toolset, cache.memo), cache)

    def find_opened(self) -> Entry | None:
        """The matching entry that is open in this process; its file may have been removed."""
        any_compiler = self.toolset is None
        for entry in loader.opened_entries(self.plan.op):
            same = self.key.differs_only_in(entry.manifest.key_parts, COMPILER_PARTS if any_compiler else ())
            if same and entry.manifest.key.headers_unchanged(self.roots, self.cache.memo, any_system=any_compiler):
                return entry
        return None

    def find_cached(self) -> Entry | None:
        """The matching entry in the cache; without a compiler, an entry of any compiler matches."""
        return self.cache.find(self.key, self.plan.op, self.roots, any_compiler=self.toolset is None)


def load_opened(op: Op) -> Any | None:
    """The op as this process has loaded it already; None if it has not, or if its plan has changed since."""
    if not loader.opened_entries(op.name):
        return None
    try:
        entry = Request.of(op).find_opened()
    except AccelError as error:  # a wheel may contain binaries without their sources
        logger.debug("'%s' has no plan: %s", op.name, error.message)
        return None
    return loader.open_entry(entry, op) if entry is not None else None


def load_prebuilt(op: Op) -> Any | None:
    """The prebuilt op, loaded; None if no prebuilt binary fits, with the reason in the log."""
    if not any(root.is_dir() for root in paths.prebuilt_roots(type(op))):
        return None
    # Imported here, because most ops have no prebuilt binary.
    from op_builder.load.prebuilt import find_prebuilt

    found = find_prebuilt(op)
    if found is None:
        return None
    if isinstance(found, Entry):
        try:
            return loader.open_entry(found, op)
        except LoadError as error:
            reason = error.message
    else:
        reason = found.reason
    logger.warning("The prebuilt '%s' is ignored: %s.", op.name, reason.rstrip("."))
    return None


def jit_load(op: Op, progress: Progress | None = None) -> Any:
    """Load the op from the cache, else compile it now; prebuilt binaries are ignored."""
    entry = cached_or_built(op, progress)
    try:
        return loader.open_entry(entry, op)
    except LoadError:
        if entry.artifact.exists():
            raise
        # Another process or host has removed the entry since it was found.
        return loader.open_entry(cached_or_built(op, progress), op)


def cached_or_built(op: Op, progress: Progress | None = None) -> Entry:
    """The entry of ``op``: already open, or in the cache, or compiled now. Does not open it.

    Raises:
        IncompatibleOpError: the op cannot be built or loaded here, or compiling is forbidden.
    """
    request = Request.of(op)
    entry = request.find_opened() or request.find_cached()
    if entry is not None:
        return entry
    if not env.ACCEL_JIT.get() or is_listing():
        raise _forbidden(request)
    from op_builder.engine.build import BuildOptions

    # Only the process that builds runs the checks; the processes that wait for it do not need them.
    options = BuildOptions(progress=progress, precondition=lambda: require_compatible(op))
    return compile_now(request, options)


@contextmanager
def without_compiling() -> Iterator[None]:
    """Refuse to compile in this thread: other packages' modules may load their ops when they are imported."""
    before = is_listing()
    _thread.is_listing = True
    try:
        yield
    finally:
        _thread.is_listing = before


def is_listing() -> bool:
    """Whether this thread is inside :func:`without_compiling`."""
    return getattr(_thread, "is_listing", False)


def _forbidden(request: Request) -> IncompatibleOpError:
    """The error of a refused build: what it would have compiled, with which tools, and the nearest existing entry."""
    from op_builder.cache.compare import nearest_miss

    plan, cache = request.plan, request.cache
    tools = " and ".join(request.toolset.identities.values()) if request.toolset is not None else "a compiler"
    nearest, differences = nearest_miss(cache.entries(plan.op), request.key, request.roots, cache.memo)
    difference = f" The nearest entry differs in: {'; '.join(differences)}." if nearest is not None else ""
    reason, remedy = (_LISTING, "Load the op when it is first used.") if is_listing() else (JIT_FORBIDDEN, JIT_REMEDY)
    return IncompatibleOpError(
        f"Op '{plan.op}' is neither prebuilt nor in the cache {cache.root}. {reason} It would have compiled "
        f"{', '.join(source.label for source in plan.sources)} with {tools}.{difference}",
        remedy,
    )


def require_compatible(op: Op) -> None:
    """Raise an IncompatibleOpError with reason and remedy unless ``op`` can be built and loaded here."""
    from op_builder.system.outcomes import require

    require(op.name, [*op.build_checks(), *op.load_checks()])
    rejection = op.own_rejection()
    if rejection is not None:
        raise IncompatibleOpError(f"Op '{op.name}' is not available here. {rejection}")


def compile_now(request: Request, options: BuildOptions | None = None) -> Entry:
    """Build a request that the cache does not contain.

    Raises:
        ToolchainError, MissingCUDAException: a tool is missing.
    """
    from op_builder.engine.build import build

    if request.toolset is None:
        if options is not None:
            options.precondition()
        raise request.missing_tool or ToolchainError("No compiler was found.")
    return build(request.plan, request.key, request.toolset, request.cache, options)
