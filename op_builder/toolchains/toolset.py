"""The compilers one plan needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from op_builder import env
from op_builder.memo import Memo
from op_builder.plan import BuildPlan
from op_builder.toolchains.compiler import Compiler, find_cxx

if TYPE_CHECKING:
    from op_builder.toolchains.cuda import CudaToolkit


@dataclass(frozen=True)
class Toolset:
    """The tools a plan is built with; ``cuda`` only where the plan has CUDA sources."""

    cxx: Compiler
    cuda: CudaToolkit | None = None

    @property
    def identities(self) -> dict[str, str]:
        """What of the tools counts in the key, by its name there."""
        known = {"c++ compiler": self.cxx.identity}
        if self.cuda is not None:
            known["cuda compiler"] = self.cuda.identity
        variables = env.read_by_compilers(cuda=self.cuda is not None)
        if variables:
            known["compiler variables"] = json.dumps(variables)
        return known


def find_toolset(plan: BuildPlan, memo: Memo) -> Toolset:
    """The tools for ``plan``.

    Raises:
        ToolchainError, MissingCUDAException: one of them is missing or does not answer.
    """
    cxx = find_cxx(memo)
    if not plan.uses_cuda:
        return Toolset(cxx)
    from op_builder.toolchains.cuda import find_cuda

    return Toolset(cxx, find_cuda(memo))
