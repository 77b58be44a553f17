"""The tools that build one plan."""

import json
from typing import TYPE_CHECKING, NamedTuple

from op_builder import env
from op_builder.errors import ToolchainError
from op_builder.plan import BuildPlan
from op_builder.system.memo import Memo
from op_builder.toolchains.compiler import Compiler, find_cxx
from op_builder.toolchains.flags import contents_of, expand_response_files, named_files

if TYPE_CHECKING:
    from op_builder.toolchains.cuda import CudaToolkit
    from op_builder.toolchains.sycl_ahead import SyclCompiler
    from op_builder.toolchains.sycl_runtime import SyclRuntime


class Toolset(NamedTuple):
    """The tools a plan is built with.

    Attributes:
        cxx: the host compiler.
        cuda: only where the plan has CUDA sources.
        sycl: the SYCL runtime, only where the plan is SYCL's.
        icpx: the SYCL compiler, only where the plan has SYCL sources.
    """

    cxx: Compiler
    cuda: "CudaToolkit | None" = None
    sycl: "SyclRuntime | None" = None
    icpx: "SyclCompiler | None" = None

    @property
    def identities(self) -> dict[str, str]:
        """What of the tools counts in the key, by its name there."""
        known = {"c++ compiler": self.cxx.itself}
        if self.cxx.flags:
            known["flags in CXX"] = " ".join([self.cxx.flags_text, *contents_of(named_files(self.cxx.flags))])
        if self.cuda is not None:
            known["cuda compiler"] = self.cuda.identity
        if self.icpx is not None:
            known["sycl compiler"] = self.icpx.identity
        variables = env.read_by_compilers(cuda=self.cuda is not None)
        if variables:
            words = expand_response_files(word for value in variables.values() for word in value.split())
            known["compiler variables"] = json.dumps([variables, *words, *contents_of(named_files(words))])
        return known


def find_toolset(plan: BuildPlan, memo: Memo) -> Toolset:
    """The tools for ``plan``.

    Raises:
        ToolchainError, MissingCUDAException: one of them is missing or does not answer.
    """
    cxx = find_cxx(memo, plan.target)
    if plan.sycl is not None:
        if plan.uses_cuda:
            raise ToolchainError(
                f"Op '{plan.op}' has both CUDA and SYCL sources; one binary has kernels of one kind.",
                "Write one builder for each device.",
            )
        from op_builder.toolchains.sycl_ahead import find_sycl_tools

        return Toolset(cxx, None, *find_sycl_tools(plan, memo))
    if not plan.uses_cuda:
        return Toolset(cxx)
    from op_builder.toolchains.cuda import find_cuda

    return Toolset(cxx, find_cuda(memo))
