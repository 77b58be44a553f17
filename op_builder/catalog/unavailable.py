"""Builders of ops that this device lacks, or whose builder is broken."""

from __future__ import annotations

from functools import cache
from typing import ClassVar, NoReturn

from op_builder.builder.base import OpBuilder
from op_builder.system.outcomes import CheckOutcome, Failed, require


class UnavailableOpBuilder(OpBuilder):
    """The builder of an op that a device lacks, or whose own builder cannot be created."""

    REASON: ClassVar[str] = ""
    REMEDY: ClassVar[str] = ""
    INSTEAD_OF: ClassVar[type[OpBuilder] | None] = None
    """The class that cannot be instantiated; None for an op that the device lacks."""

    def sources(self) -> list[str]:
        return []

    def build_checks(self) -> list[CheckOutcome]:
        return [Failed("implementation", self.REASON, self.REMEDY)]

    def load_checks(self) -> list[CheckOutcome]:
        # A wheel may contain the op for another device, and then build_checks() is not called.
        return self.build_checks()

    def check(self) -> list[CheckOutcome]:
        return self.build_checks()

    def load(self, verbose: bool = True) -> NoReturn:  # noqa: ARG002
        """Raise IncompatibleOpError with the reason and the remedy. ``plan()`` and ``builder()`` raise it, too."""
        require(self.name, self.check())
        raise AssertionError("an unavailable op has a failed check")

    plan = builder = jit_load = load


@cache
def unavailable(
    builder: str,
    name: str,
    summary: str,
    package: str,
    reason: str,
    remedy: str,
    instead_of: type[OpBuilder] | None = None,
) -> type[OpBuilder]:
    """A class named ``builder`` in ``package`` with the reason and the remedy."""
    attributes = {
        "NAME": name,
        "BUILD_VAR": f"ACCEL_BUILD_{name.upper()}",
        "SUMMARY": summary,
        "REASON": reason,
        "REMEDY": remedy,
        "INSTEAD_OF": instead_of,
        "__module__": package,
    }
    return type(builder, (UnavailableOpBuilder,), attributes)
