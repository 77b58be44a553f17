"""What ``load()`` would do, without doing it: for ``is_compatible()`` and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from op_builder.cache.machine import ExaminedMachine
from op_builder.errors import AccelError
from op_builder.load.lookup import Lookup
from op_builder.load.open import NOEXEC_REMEDY
from op_builder.load.resolve import BINARIES, BUILD, PREBUILT, Candidate, resolve
from op_builder.system.file_contents import mapping_error
from op_builder.system.outcomes import Rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from op_builder.cache.store import Cache, Entry
    from op_builder.spec import OpSpec


class Decision(NamedTuple):
    """What ``load()`` would do.

    Attributes:
        candidates: as :func:`op_builder.load.resolve.resolve` lists them; the build only if it would be needed.
        rejection: why ``load()`` would raise; None if it would load the op.
        lookup: the facts about the op; None if the cache cannot be used.
    """

    candidates: tuple[Candidate, ...]
    rejection: Rejection | None
    lookup: Lookup | None

    @property
    def prebuilt(self) -> Candidate | None:
        """The prebuilt binary that ``load()`` would use, else one that it ignores."""
        found = [candidate for candidate in self.candidates if candidate.way == PREBUILT]
        return next((each for each in found if each.rejection is None), found[0] if found else None)

    def accepted(self, way: str) -> Candidate | None:
        """The first accepted candidate of that way."""
        found = (each for each in self.candidates if each.way == way and each.rejection is None)
        return next(found, None)


def decide(spec: OpSpec, open_cache: Callable[[], Cache]) -> Decision:
    """Find out what ``load()`` would do, without compiling the op."""
    try:
        lookup = _UnopenedLookup(spec, open_cache())
    except AccelError as error:
        return Decision((), Rejection.of(error), None)
    candidates = tuple(resolve(lookup, BINARIES))
    if any(each.rejection is None for each in candidates):
        return Decision(candidates, None, lookup)
    candidates += tuple(resolve(lookup, (BUILD,)))
    return Decision(candidates, candidates[-1].rejection, lookup)


class _UnopenedLookup(Lookup):
    """A look-up that also finds why a binary could not be opened, which ``load()`` finds when it opens it."""

    def __init__(self, spec: OpSpec, cache: Cache) -> None:
        super().__init__(spec, cache)
        self.machine = ExaminedMachine()

    def prebuilt(self) -> Iterator[Candidate]:
        for found in super().prebuilt():
            unopened = _mapping_rejection(found.entry) if found.rejection is None and found.entry is not None else None
            yield found if unopened is None else found._replace(rejection=unopened)

    def cached(self) -> Iterator[tuple[Entry, Rejection | None]]:
        for entry, rejection in super().cached():
            yield entry, rejection or _mapping_rejection(entry)


def _mapping_rejection(entry: Entry) -> Rejection | None:
    try:
        with entry.artifact.open("rb") as file:
            reason = mapping_error(file.fileno())
    except OSError as error:
        reason = error.strerror or ""
    return Rejection(f"{entry.artifact}: {reason}.", NOEXEC_REMEDY) if reason else None
