"""What loading asks of an op. Builders have these members; nothing here knows a builder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from op_builder.cache.store import Cache
    from op_builder.plan import BuildPlan
    from op_builder.system.outcomes import CheckOutcome


class Op(Protocol):
    """An op that can be loaded."""

    name: str

    @property
    def cache(self) -> Cache:
        """Where its builds are kept."""

    def plan(self) -> BuildPlan:
        """The recipe of its binary."""

    def plan_for(self, cuda_archs: list[str]) -> BuildPlan:
        """The same recipe, for these CUDA architectures."""

    def build_checks(self) -> list[CheckOutcome]:
        """What compiling it needs."""

    def load_checks(self) -> list[CheckOutcome]:
        """What opening it needs."""

    def own_rejection(self) -> str | None:
        """Why its author's own check rejects this machine, if it does."""

    def open_libraries(self) -> None:
        """Open the libraries that its binary needs and torch does not bring."""

    def bind(self, opened: Any) -> Any:
        """What ``load()`` returns, made of the opened binary."""
