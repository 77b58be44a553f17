"""The ops that ``ACCEL_BUILD_OPS`` and ``ACCEL_BUILD_<OP>`` request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from op_builder import env
from op_builder.errors import UnknownOpError
from op_builder.messages import did_you_mean

if TYPE_CHECKING:
    from op_builder.spec import OpSpec

HOST_PACKAGE = "op_builder.cpu"
"""The package of the host's ops, which every wheel has."""

_PREFIX = env.ACCEL_BUILD_OP.name.partition("<")[0]


@dataclass(frozen=True)
class BuildRequest:
    """The requested ops.

    Attributes:
        everything: whether every compatible op is requested.
        ops: whether an op is requested, by the name of its variable; overrides ``everything``.
    """

    everything: bool
    ops: Mapping[str, bool]

    @staticmethod
    def from_environment() -> BuildRequest:
        """The request in the environment; a platform alone requests every op.

        Raises:
            EnvironmentValueError: a variable is neither 0 nor 1.
        """
        ops = env.build_switches()
        is_platform_alone = env.ACCEL_BUILD_TARGET.raw() is not None and not any(ops.values())
        default = is_platform_alone and env.ACCEL_BUILD_OPS.raw() is None
        return BuildRequest(env.ACCEL_BUILD_OPS.get() or default, ops)

    def wants(self, spec: OpSpec) -> bool:
        """Whether the op is requested."""
        return self.ops.get(variable_of(spec), self.everything)

    def requires(self, spec: OpSpec) -> bool:
        """Whether the op's own variable requests it, so that the build fails without it."""
        return self.ops.get(variable_of(spec), False)

    def check_names(self, specs: Iterable[OpSpec], reason: str = "") -> None:
        """Raise an UnknownOpError if a variable belongs to no op of ``specs``.

        Args:
            reason: why ops may be missing, for the message.
        """
        known = sorted(set(map(variable_of, specs)))
        for name in self.ops:
            if name in known:
                continue
            raise UnknownOpError(
                f"{name} is set, but no op has that name. {reason}".strip(),
                did_you_mean(name, known, common=_PREFIX) or f"Unset it. The variables are: {', '.join(known)}.",
            )


def variable_of(spec: OpSpec) -> str:
    """The variable that requests the op: the one that its author names if that has the usual prefix."""
    named = spec.build_variable or ""
    return named if named.startswith(_PREFIX) else f"{_PREFIX}{spec.name.upper()}"
