"""What a prebuild is asked for, by ``ACCEL_BUILD_OPS`` and ``ACCEL_BUILD_<OP>``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from op_builder import env
from op_builder.errors import UnknownOpError

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder


_PREFIX = env.ACCEL_BUILD_OP.name.partition("<")[0]


@dataclass(frozen=True)
class Order:
    """What to build.

    Attributes:
        everything: every op that can be built here.
        ops: by the name of its variable, whether an op is wanted whatever ``everything`` says.
    """

    everything: bool
    ops: Mapping[str, bool]

    @staticmethod
    def of_environment() -> Order:
        """What the environment asks for.

        Raises:
            EnvironmentValueError: a variable is neither 0 nor 1.
        """
        return Order(env.ACCEL_BUILD_OPS.get(), env.build_switches())

    @property
    def is_empty(self) -> bool:
        return not self.everything and not any(self.ops.values())

    @property
    def variables(self) -> list[str]:
        """The names of all variables that make it."""
        return [env.ACCEL_BUILD_OPS.name, *self.ops]

    def wants(self, builder: OpBuilder) -> bool:
        """Whether ``builder``'s op is to be built."""
        return self.ops.get(variable_of(builder), self.everything)

    def insists_on(self, builder: OpBuilder) -> bool:
        """Whether it was asked for by its own variable, so that nothing may be made without it."""
        return self.ops.get(variable_of(builder), False)

    def refuse_unknown(self, builders: Iterable[OpBuilder], complaint: str = "") -> None:
        """Raise an UnknownOpError if a variable names an op that none of ``builders`` builds.

        Args:
            complaint: why ops that may be meant are not among them.
        """
        known = sorted({variable_of(builder) for builder in builders})
        for name in self.ops:
            if name in known:
                continue
            # Without what they all begin with, which would make any two of them alike.
            near = difflib.get_close_matches(name.removeprefix(_PREFIX), [each.removeprefix(_PREFIX) for each in known])
            likely = " or ".join(f"{_PREFIX}{each}" for each in near)
            raise UnknownOpError(
                f"{name} is set, and there is no op of that name. {complaint}".strip(),
                f"Did you mean {likely}?" if near else f"Unset it. The variables are: {', '.join(known)}.",
            )


def variable_of(builder: OpBuilder) -> str:
    """The variable that asks for ``builder``'s op; a builder of elsewhere may have named another kind of variable."""
    named = builder.BUILD_VAR or ""
    return named if named.startswith(_PREFIX) else f"{_PREFIX}{builder.name.upper()}"
