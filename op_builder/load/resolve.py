"""The ways to load an op, in their order, each accepted or rejected with a reason.

``load()``, ``is_compatible()``, the report and the prebuild read this one list. The decision is pure: it asks only for
the facts that it is given (:class:`Facts`; :mod:`op_builder.load.lookup` finds those of this machine), one by one, so
that a warm ``load()`` finds out no more than it needs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from op_builder.cache.machine import machine_rejection
from op_builder.errors import AccelError
from op_builder.system.outcomes import Rejection

if TYPE_CHECKING:
    from typing import Protocol

    from op_builder.cache.machine import ThisMachine
    from op_builder.cache.store import Entry

    class Facts(Protocol):
        """What is known about one op on one machine."""

        @property
        def machine(self) -> ThisMachine: ...
        @property
        def any_compiler(self) -> bool:
            """Whether binaries of every compiler are used, because this machine lacks one."""
            ...

        @property
        def is_python(self) -> bool:
            """Whether the op is Python code, without a binary."""
            ...

        @property
        def unavailable(self) -> Rejection | None:
            """Why the op cannot be loaded in any way."""
            ...

        def opened(self) -> Iterable[tuple[Entry, Rejection | None]]:
            """The binaries that are open in this process, each with how it differs from what would be built now."""
            ...

        def prebuilt(self) -> Iterable[Candidate]:
            """The binaries in wheels, rejected if they differ from the op's plan or cannot be read."""
            ...

        def cached(self) -> Iterable[tuple[Entry, Rejection | None]]:
            """The cache's entries of the op's key, each with the reason why it cannot be used."""
            ...

        def loading(self) -> Rejection | None:
            """Why no binary of the op can be loaded in this process: a check of loading fails."""
            ...

        def building(self) -> Rejection | None:
            """Why the op cannot be compiled now: it is forbidden, a check fails, or its author rejects this machine.

            Raises:
                AccelError: the plan cannot be made, or a variable is not valid.
            """
            ...


LOADED, PREBUILT, CACHED, BUILD, PYTHON = "loaded", "prebuilt", "cached", "build", "python"
BINARIES = (LOADED, PREBUILT, CACHED)
WAYS = (*BINARIES, BUILD)
WITHOUT_PREBUILT = (LOADED, CACHED, BUILD)


class Candidate(NamedTuple):
    """One way to load an op.

    Attributes:
        way: ``loaded`` in this process, ``prebuilt`` in a wheel, ``cached``, ``build``, or ``python`` code.
        directory: of the binary; None without one.
        entry: the binary with its manifest; None without one, or if the manifest cannot be read.
        rejection: why it is not used; None if it is accepted.
        error: the rejection of a build whose plan cannot be made, as it was raised.
    """

    way: str
    directory: Path | None = None
    entry: Entry | None = None
    rejection: Rejection | None = None
    error: AccelError | None = None


def resolve(facts: Facts, ways: Container[str] = WAYS) -> Iterator[Candidate]:
    """The ways to load an op, the best first; the last is to build it, or its Python code.

    Args:
        ways: those that count.
    """
    if facts.is_python or facts.unavailable is not None:
        if BUILD in ways:
            yield _last(PYTHON if facts.is_python else BUILD, facts)
        return
    for entry, rejection in facts.opened() if LOADED in ways else ():
        yield Candidate(LOADED, entry.directory, entry, rejection)
    for found in facts.prebuilt() if PREBUILT in ways else ():
        rejection = found.rejection
        if rejection is None and found.entry is not None:
            rejection = machine_rejection(found.entry.manifest, facts.machine) or facts.loading()
        yield found._replace(rejection=rejection)
    for entry, rejection in facts.cached() if CACHED in ways else ():
        if rejection is None and facts.any_compiler:  # it may be of another machine
            rejection = machine_rejection(entry.manifest, facts.machine)
        rejection = rejection or facts.loading()
        yield Candidate(CACHED, entry.directory, entry, rejection)
    if BUILD in ways:
        yield _last(BUILD, facts)


def _last(way: str, facts: Facts) -> Candidate:
    try:
        return Candidate(way, rejection=facts.unavailable or facts.building())
    except AccelError as error:
        return Candidate(way, rejection=Rejection.of(error), error=error)
