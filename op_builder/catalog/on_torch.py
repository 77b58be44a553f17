"""Builders of ops that are Python code on torch, for devices without kernels of this project."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

from op_builder.catalog.native import RowBuilder, front_object
from op_builder.errors import IncompatibleOpError
from op_builder.system.outcomes import CheckOutcome, Passed


class TorchRowBuilder(RowBuilder):
    """An op that needs no binary: ``load()`` returns its object at once."""

    def sources(self) -> list[str]:
        return []

    def build_checks(self) -> list[CheckOutcome]:
        return [Passed("implementation", "Python code on torch")]

    def load(self, verbose: bool = True) -> Any:  # noqa: ARG002
        """The op's object, the same each time."""
        return _front_object(self.OP.on_torch)

    jit_load = load

    def plan(self) -> NoReturn:
        """Raise IncompatibleOpError: there is nothing to build."""
        raise IncompatibleOpError(
            f"Op '{self.name}' is Python code on torch; it has no binary.", "Load it; it needs no build."
        )

    builder = plan


@cache
def _front_object(path: str) -> Any:
    return front_object(path)()
