"""What ``ACCEL_BUILD_OPS`` and ``ACCEL_BUILD_<OP>`` request of a prebuild."""

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
class BuildRequest:
    """What to build.

    Attributes:
        everything: every op that can be built here.
        ops: by the name of its variable, whether an op is wanted; goes before ``everything``.
    """

    everything: bool
    ops: Mapping[str, bool]

    @staticmethod
    def from_environment() -> BuildRequest:
        """What the environment requests.

        Raises:
            EnvironmentValueError: a variable is neither 0 nor 1.
        """
        return BuildRequest(env.ACCEL_BUILD_OPS.get(), env.build_switches())

    def wants(self, builder: OpBuilder) -> bool:
        """Whether ``builder``'s op is to be built."""
        return self.ops.get(variable_of(builder), self.everything)

    def requires(self, builder: OpBuilder) -> bool:
        """Whether its own variable requests it, so that the build fails without it."""
        return self.ops.get(variable_of(builder), False)

    def check_names(self, builders: Iterable[OpBuilder], reason: str = "") -> None:
        """Raise an UnknownOpError if a variable names an op that none of ``builders`` builds.

        Args:
            reason: why some ops may be missing from them.
        """
        known = sorted({variable_of(builder) for builder in builders})
        for name in self.ops:
            if name in known:
                continue
            # Without the common prefix, which makes any two names similar.
            near = difflib.get_close_matches(name.removeprefix(_PREFIX), [each.removeprefix(_PREFIX) for each in known])
            likely = " or ".join(f"{_PREFIX}{each}" for each in near)
            raise UnknownOpError(
                f"{name} is set, and no op has that name. {reason}".strip(),
                f"Did you mean {likely}?" if near else f"Unset it. The variables are: {', '.join(known)}.",
            )


def variable_of(builder: OpBuilder) -> str:
    """The variable that requests ``builder``'s op: its BUILD_VAR, unless that is of another form."""
    named = builder.BUILD_VAR or ""
    return named if named.startswith(_PREFIX) else f"{_PREFIX}{builder.name.upper()}"
