"""What ``load()`` would do, without doing it: for ``is_compatible()`` and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from op_builder.errors import AccelError
from op_builder.load.lookup import Lookup
from op_builder.load.open import NOEXEC_REMEDY
from op_builder.load.prebuilt import linker_rejection
from op_builder.load.resolve import BUILD, CACHED, LOADED, PREBUILT, Candidate, resolve
from op_builder.system.file_contents import mapping_error
from op_builder.system.outcomes import CheckOutcome, Failed, Passed, Rejection, failures, guarded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from op_builder.cache.store import Cache
    from op_builder.spec import OpSpec


class Decision(NamedTuple):
    """The candidates of an op, and the checks that decide whether the chosen one would load.

    Attributes:
        candidates: as :func:`op_builder.load.resolve.resolve` lists them.
        outcomes: the checks that apply; those of building only if there is no binary.
    """

    candidates: tuple[Candidate, ...]
    outcomes: list[CheckOutcome]

    @property
    def prebuilt(self) -> Candidate | None:
        """The prebuilt binary that ``load()`` would use, else one that it ignores."""
        found = [candidate for candidate in self.candidates if candidate.way == PREBUILT]
        # A wheel may contain an op for several devices, so that another recipe is the least interesting reason.
        found.sort(key=lambda each: (each.rejection is not None, "another recipe" in str(each.rejection)))
        return next(iter(found), None)

    def _accepted(self, way: str) -> Candidate | None:
        found = (each for each in self.candidates if each.way == way and each.rejection is None)
        return next(found, None)

    @property
    def is_installed(self) -> bool:
        return self._accepted(PREBUILT) is not None

    @property
    def is_loaded(self) -> bool:
        return self._accepted(LOADED) is not None

    @property
    def cached(self) -> Candidate | None:
        """The entry that ``load()`` would use if there were no prebuilt binary."""
        return self._accepted(CACHED)

    @property
    def failed(self) -> list[Failed]:
        return failures(self.outcomes)


def decide(spec: OpSpec, open_cache: Callable[[], Cache]) -> Decision:
    """Find out what ``load()`` would do, without compiling the op."""
    try:
        cache = open_cache()
    except AccelError as error:
        return Decision((), [Failed("cache directory", Rejection(error.message, error.remedy))])
    lookup = Lookup(spec, cache)
    candidates = tuple(_as_the_linker_would(candidate) for candidate in resolve(lookup))
    last = candidates[-1]
    if last.rejection is not None and lookup.unavailable() is not None:
        name = "system" if spec.unavailable is None else "implementation"
        return Decision(candidates, [Failed(name, Rejection(last.rejection.reason, last.rejection.remedy))])
    if spec.python is not None:
        return Decision(candidates, [*spec.build_checks(cache, lambda: lookup.plan), *spec.load_checks(cache)])
    found = Decision(candidates, _plan_problem(lookup))
    if found.is_installed or found.is_loaded:
        return found._replace(outcomes=[*found.outcomes, *spec.load_checks(cache)])
    if found.cached is not None and found.cached.entry is not None:
        artifact = found.cached.entry.artifact
        check = guarded("cached binary", lambda: _mapping_check(artifact))
        return found._replace(outcomes=[*found.outcomes, *spec.load_checks(cache), check])
    checks = [*spec.build_checks(cache, lambda: lookup.plan), *found.outcomes, *spec.load_checks(cache)]
    if last.way == BUILD:
        checks.append(guarded("JIT", lambda: _jit_check(lookup)))
    return found._replace(outcomes=list(dict.fromkeys(checks)))


def _plan_problem(lookup: Lookup) -> list[CheckOutcome]:
    """The failed check of an op whose builder raises anything but an AccelError, which its own checks report."""
    try:
        _ = lookup.plan
    except AccelError:
        return []
    except Exception as error:  # the methods of another package's builder may raise anything
        remedy = f"Report this to the author of {lookup.spec.author}."
        return [Failed("plan", Rejection(f"its builder fails: {type(error).__name__}: {error}", remedy))]
    return []


def _as_the_linker_would(candidate: Candidate) -> Candidate:
    if candidate.way != PREBUILT or candidate.entry is None or candidate.rejection is not None:
        return candidate
    return candidate._replace(rejection=linker_rejection(candidate.entry))


def _mapping_check(artifact: Path) -> CheckOutcome:
    with artifact.open("rb") as file:
        reason = mapping_error(file.fileno())
    if reason:
        return Failed("cached binary", Rejection(f"{artifact}: {reason}.", NOEXEC_REMEDY))
    return Passed("cached binary", str(artifact))


def _jit_check(lookup: Lookup) -> CheckOutcome:
    forbidden = lookup.building()
    return Passed("JIT", "allowed") if forbidden is None else Failed("JIT", forbidden)
