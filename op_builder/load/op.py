"""The part of a builder that loading uses. The modules here depend on this protocol and on no builder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from op_builder.cache.store import Cache
    from op_builder.plan import BuildPlan
    from op_builder.system.outcomes import CheckOutcome


class Op(Protocol):
    """An op that can be loaded; :class:`op_builder.builder.base.OpBuilder` documents the members."""

    name: str

    @property
    def cache(self) -> Cache: ...

    def plan(self) -> BuildPlan: ...

    def plan_for(self, cuda_archs: list[str]) -> BuildPlan: ...

    def build_checks(self) -> list[CheckOutcome]: ...

    def load_checks(self) -> list[CheckOutcome]: ...

    def own_rejection(self) -> str | None: ...

    def open_libraries(self) -> None: ...

    def bind(self, opened: Any) -> Any: ...
