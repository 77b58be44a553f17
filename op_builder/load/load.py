"""``load()``: take the first accepted candidate, open it, or build it first."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from op_builder.cache.store import Cache, Entry
from op_builder.errors import AccelError, LoadError
from op_builder.load.lookup import Lookup
from op_builder.load.open import open_entry
from op_builder.load.resolve import BUILD, CACHED, PREBUILT, PYTHON, WAYS, Candidate, resolve
from op_builder.spec import OpSpec
from op_builder.system.outcomes import Rejection, unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from op_builder.engine.ninja import Progress

logger = logging.getLogger(__name__)


def load(spec: OpSpec, cache: Cache, progress: Progress | None = None, ways: Sequence[str] = WAYS) -> Any:
    """Load an op: already loaded, else prebuilt, else from the cache, else compiled now.

    Args:
        progress: called at every step of a build.
        ways: the ways that count; see :mod:`op_builder.load.resolve`.

    Returns:
        what the op's front end makes of the opened library; the same object each time for the same build.

    Raises:
        IncompatibleOpError: the op cannot be built or loaded here, or compiling is forbidden.
        CompileError, LoadError, CacheError, ToolchainError: building or opening it failed.
    """
    try:
        return load_entry(spec, cache, progress, ways)[1]
    except AccelError as error:
        # The message contains the reason, which the engine's frames would hide.
        raise error.with_traceback(None) from error.__cause__


def load_entry(
    spec: OpSpec, cache: Cache, progress: Progress | None = None, ways: Sequence[str] = WAYS
) -> tuple[Entry | None, Any]:
    """The binary that :func:`load` opens, or None for Python code; and its result."""
    lookup = Lookup(spec, cache)
    unopened: LoadError | None = None
    for candidate in resolve(lookup, ways):
        way, entry, rejection = candidate.way, candidate.entry, candidate.rejection
        if rejection is not None:
            if way in (BUILD, PYTHON):
                if candidate.error is not None:
                    raise candidate.error
                raise unavailable(spec.name, rejection) from unopened
            _log(candidate, rejection, lookup)
        elif spec.python is not None:
            return None, spec.python()
        elif entry is None:
            from op_builder.engine.build import BuildOptions, build

            entry = build(*lookup.to_build(), cache, BuildOptions(progress=progress))
            return entry, open_entry(entry, spec, cache)
        else:
            if way == CACHED:
                cache.note_use(entry)
            try:
                return entry, open_entry(entry, spec, cache)
            except LoadError as error:
                if way == PREBUILT or _is_of_any_compiler(candidate, lookup):
                    _log(candidate, Rejection.of(error), lookup)
                    unopened = error
                elif entry.artifact.exists():  # else another process or host has removed it
                    raise
    raise AssertionError("resolve() ends with a build")


def _log(candidate: Candidate, rejection: Rejection, lookup: Lookup) -> None:
    """Log why a binary is not used: a warning if the user put it there."""
    is_given = candidate.way == PREBUILT or _is_of_any_compiler(candidate, lookup)
    level = logging.WARNING if is_given else logging.DEBUG
    logger.log(level, "The %s '%s' is ignored. %s", candidate.way, lookup.spec.name, rejection)


def _is_of_any_compiler(candidate: Candidate, lookup: Lookup) -> bool:
    """Whether it is an entry of the cache that another machine may have built, because this one has no compiler."""
    return candidate.way == CACHED and lookup.any_compiler
