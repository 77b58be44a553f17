from __future__ import annotations

import pytest

from op_builder import env
from op_builder.cpu import CPUAdamBuilder
from op_builder.ops.optim.host_op import HostOp
from op_builder.system.cpu_isa import supported_isas


@pytest.fixture(scope="session")
def cpu_adam() -> HostOp:
    """The op as users get it, with the best instruction set."""
    return CPUAdamBuilder().load()


@pytest.fixture(scope="session", params=supported_isas())
def adam_of_isa(request: pytest.FixtureRequest, cpu_adam: HostOp) -> HostOp:
    """The op, once with every instruction set that this machine can run."""
    with env.scope(ACCEL_CPU_ISA=request.param):
        return HostOp(cpu_adam.ops)
