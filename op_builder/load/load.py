"""``load()``: take the first accepted candidate, open it, or build it first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from op_builder.cache.store import Cache, Entry
from op_builder.errors import IncompatibleOpError, LoadError
from op_builder.load.lookup import JIT_FORBIDDEN, Lookup
from op_builder.load.open import open_entry
from op_builder.load.resolve import BUILD, CACHED, PREBUILT, Candidate, resolve
from op_builder.spec import OpSpec
from op_builder.system.outcomes import Failed, Rejection, require

if TYPE_CHECKING:
    from op_builder.engine.build import BuildOptions
    from op_builder.engine.ninja import Progress

logger = logging.getLogger(__name__)

_LISTING = Rejection("Nothing is compiled while installed ops are listed.", "Load the op when it is first used.")
_thread = threading.local()
_python_ops: dict[str, Any] = {}
_NOT_OPENED = object()  # a front end may return None


def load(spec: OpSpec, cache: Cache, progress: Progress | None = None, *, with_prebuilt: bool = True) -> Any:
    """Load an op: already loaded, else prebuilt, else from the cache, else compiled now.

    Args:
        progress: called at every step of a build.
        with_prebuilt: whether binaries in wheels count.

    Returns:
        what the op's front end makes of the opened library; the same object each time for the same build.

    Raises:
        IncompatibleOpError: the op cannot be built or loaded here, or compiling is forbidden.
        CompileError, LoadError, CacheError, ToolchainError: building or opening it failed.
    """
    if spec.python is not None:
        return _python_op(spec)
    return load_entry(spec, cache, progress, with_prebuilt=with_prebuilt)[1]


def load_entry(
    spec: OpSpec, cache: Cache, progress: Progress | None = None, *, with_prebuilt: bool = True
) -> tuple[Entry, Any]:
    """The binary that :func:`load` opens, and its result."""
    lookup = Lookup(spec, cache)
    for candidate in resolve(lookup, with_prebuilt=with_prebuilt):
        if candidate.rejection is not None:
            _note(candidate, lookup)
        elif candidate.entry is not None:
            opened = _try_open(candidate, candidate.entry, lookup)
            if opened is not _NOT_OPENED:
                return candidate.entry, opened
    from op_builder.engine.build import BuildOptions

    options = BuildOptions(progress=progress)
    if is_listing():
        pass  # build() raises
    elif spec.has_own_checks:
        require_compatible(lookup)  # no lock is held: an author's code may wait for another thread
    else:
        # Only the process that builds runs the checks; the processes that wait for it do not need them.
        options = replace(options, precondition=lambda: require_compatible(lookup))
    entry = build(lookup, options)
    return entry, open_entry(entry, spec, cache)


def _try_open(candidate: Candidate, entry: Entry, lookup: Lookup) -> Any:
    """The opened op; ``_NOT_OPENED`` if another candidate must be tried."""
    if candidate.way == CACHED:
        lookup.cache.note_use(entry)
    try:
        return open_entry(entry, lookup.spec, lookup.cache)
    except LoadError as error:
        if candidate.way == PREBUILT:
            _note(candidate._replace(rejection=Rejection(error.message, error.remedy)), lookup)
        elif entry.artifact.exists():  # else another process or host has removed it
            raise
        return _NOT_OPENED


def _note(candidate: Candidate, lookup: Lookup) -> None:
    """Log why a candidate is not used, or raise the error if nothing else is left."""
    rejection, name = candidate.rejection, lookup.spec.name
    assert rejection is not None
    if candidate.way == BUILD:
        raise _unavailable(rejection, lookup)
    if candidate.way == CACHED:
        lookup.dismiss(candidate)
    elif candidate.way == PREBUILT:
        logger.warning("The prebuilt '%s' is ignored: %s.", name, rejection.reason.rstrip("."))
    else:
        logger.debug("The %s '%s' is not used: %s", candidate.way, name, rejection.reason)


def build(lookup: Lookup, options: BuildOptions | None = None) -> Entry:
    """Compile an op that the cache does not contain.

    Raises:
        IncompatibleOpError: compiling is not allowed in this thread, or the options' precondition failed.
        ToolchainError, MissingCUDAException: a tool is missing.
    """
    from op_builder.engine.build import BuildOptions, build

    if is_listing():
        raise _unavailable(_LISTING, lookup)
    options = options or BuildOptions()
    plan = lookup.plan
    if lookup.any_compiler:
        options.precondition()  # its message says more than that of the missing tool
    return build(plan, lookup.key, lookup.require_toolset(), lookup.cache, options)


def require_compatible(lookup: Lookup) -> None:
    """Raise an IncompatibleOpError with reason and remedy unless the op can be built and loaded here."""
    spec, cache = lookup.spec, lookup.cache
    require(spec.name, [*spec.build_checks(cache, lambda: lookup.plan), *spec.load_checks(cache)])
    rejection = spec.own_rejection()
    if rejection is not None:
        raise IncompatibleOpError(f"Op '{spec.name}' is not available here. {rejection}")


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


def _python_op(spec: OpSpec) -> Any:
    """The object of an op without a binary, the same each time."""
    if spec.author not in _python_ops:
        assert spec.python is not None
        _python_ops.setdefault(spec.author, spec.python())
    return _python_ops[spec.author]


def _unavailable(rejection: Rejection, lookup: Lookup) -> IncompatibleOpError:
    """The error of an op that has no way to be loaded, or whose build is refused.

    In the second case it names what would be compiled, with which tools, and the nearest existing entry.
    """
    name = lookup.spec.name
    if rejection not in (JIT_FORBIDDEN, _LISTING):
        try:
            require(name, [Failed("implementation", Rejection(rejection.reason, rejection.remedy))])
        except IncompatibleOpError as error:
            return error
    from op_builder.cache.compare import nearest_miss

    plan, cache = lookup.plan, lookup.cache
    tools = " and ".join(lookup.toolset.identities.values()) if lookup.toolset is not None else "a compiler"
    _, differences = nearest_miss(cache.entries(plan.op), lookup.key, lookup.roots, cache.memo)
    difference = f" The nearest entry differs in: {'; '.join(differences)}." if differences else ""
    return IncompatibleOpError(
        f"Op '{plan.op}' is neither prebuilt nor in the cache {cache.root}. {rejection.reason} It would have compiled "
        f"{', '.join(source.label for source in plan.sources)} with {tools}.{difference}",
        rejection.remedy,
    )
