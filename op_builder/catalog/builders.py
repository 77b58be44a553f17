"""Builder classes of ops that are declared as values: what ``get_op_builder()`` returns for this project's ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from op_builder.builder.base import CPUOpBuilder, OpBuilder
from op_builder.plan import Binding, BuildPlan, PlanFacts
from op_builder.recipe import Recipe
from op_builder.spec import OpFamily, OpSpec, unavailable_spec
from op_builder.system.outcomes import Rejection

if TYPE_CHECKING:
    from op_builder.cache.store import Cache
    from op_builder.system.outcomes import CheckOutcome


class DeclaredBuilder(OpBuilder):
    """The builder of a declared op. Its methods return the declaration's data, for a class that extends it."""

    BINDING = Binding.STABLE
    SPEC: ClassVar[OpSpec]

    def sources(self) -> list[str]:
        return list(self._recipe.sources)

    def source_args(self, source: str) -> list[str]:
        return list(self._recipe.source_flags.get(source, ()))

    def include_paths(self) -> list[str]:
        return list(self._recipe.include_dirs)

    def cxx_args(self) -> list[str]:
        return list(self._recipe.cxx_flags)

    def extra_ldflags(self) -> list[str]:
        return list(self._recipe.link_flags)

    def bind(self, opened: Any) -> Any:
        return self.SPEC.front_end(opened)

    def open_libraries(self) -> None:
        if self.SPEC.open_libraries is not None:
            self.SPEC.open_libraries(self.cache)

    def load_checks(self) -> list[CheckOutcome]:
        return self.SPEC.load_checks(self.cache)

    def spec(self) -> OpSpec:
        if "SPEC" in vars(type(self)):  # the class of the declaration, and not one that extends it
            return self.SPEC
        spec = super().spec()
        if self.sources() or self.source_texts():
            return spec
        # The class extends an op that has nothing to compile, and adds nothing.
        plan = self.SPEC.plan if self.SPEC.unavailable is not None else spec.plan
        return spec._replace(plan=plan, python=self.SPEC.python, unavailable=self.SPEC.unavailable)

    def recipe(self) -> Recipe:
        recipe = super().recipe()
        if self.SPEC.recipe is None or recipe.binding is not self.SPEC.recipe.binding:
            return recipe
        return recipe._replace(libraries=self.SPEC.libraries())  # which no method of a builder gives

    def plan_for(self, facts: PlanFacts) -> BuildPlan:
        return self.SPEC.plan(facts) if "SPEC" in vars(type(self)) else super().plan_for(facts)

    def plan_checks(self, cache: Cache, make_plan: Callable[[], BuildPlan]) -> list[CheckOutcome]:
        has_own_sources = self.SPEC.recipe is None and bool(self.sources() or self.source_texts())
        return (super().plan_checks if has_own_sources else self.SPEC.build_checks)(cache, make_plan)

    @property
    def _recipe(self) -> Recipe:
        return self.SPEC.recipe or Recipe(self.NAME, self.BINDING, ())


class DeclaredCPUBuilder(DeclaredBuilder, CPUOpBuilder):
    """Kernels for host memory without torch, and a thin binding on the Stable ABI."""


class UnavailableOpBuilder(DeclaredBuilder):
    """The builder of an op that a device lacks, or whose own builder cannot be created.

    ``load()``, ``plan()`` and ``builder()`` raise an IncompatibleOpError with the reason and the remedy. The spec's
    owner is the class that cannot be instantiated.
    """


def declared_builder(family: OpFamily, kernels: str, base: type[DeclaredBuilder]) -> type[OpBuilder]:
    """A subclass of ``base`` for an op with the kernels ``kernels``."""
    spec = family.spec_for(kernels)
    made: Any = spec.python or spec.front_end
    spec = spec._replace(
        builder=family.builder,
        summary=family.summary,
        device=kernels if kernels in ("cuda", "xpu") else "",
    )
    returns = f"``load()`` returns a :class:`{made.__module__}.{made.__qualname__}`."
    return _class_of(spec, base, f"op_builder.{kernels}", __doc__=returns)


@cache
def unavailable_builder(
    builder: str,
    name: str,
    summary: str,
    package: str,
    rejection: Rejection,
    instead_of: type[OpBuilder] | None = None,
) -> type[OpBuilder]:
    """A class named ``builder`` in ``package`` for an op that cannot be built or loaded."""
    spec = unavailable_spec(name, rejection, instead_of)._replace(builder=builder, summary=summary)
    return _class_of(spec, UnavailableOpBuilder, package)


def _class_of(spec: OpSpec, base: type[DeclaredBuilder], package: str, **attributes: str) -> type[OpBuilder]:
    names = {"NAME": spec.name, "BUILD_VAR": f"ACCEL_BUILD_{spec.name.upper()}", "SUMMARY": spec.summary}
    return type(spec.builder, (base,), {"SPEC": spec, "__module__": package, **names, **attributes})
