"""The base class of SYCL builders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from op_builder.builder.base import OpBuilder
from op_builder.builder.recipe_of import flag_list
from op_builder.recipe import Recipe, text_list
from op_builder.toolchains.sycl import choose, gather_facts, load_checks
from op_builder.toolchains.sycl_plan import EXACT_KERNELS

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome


class SYCLOpBuilder(OpBuilder):
    """An op with SYCL kernels, compiled by one of three toolchains.

    The kernels are free functions in files of their own, named by :meth:`kernel_sources`, which all toolchains compile.
    :meth:`sources` names the host code, which launches them through ``host/launch.h`` (see docs/sycl.md). A builder
    without :meth:`kernel_sources`, whose sources contain the SYCL code, needs ``icpx``.
    """

    _kernels_for = "xpu"

    def kernel_sources(self) -> list[str]:
        """Files with free-function kernels, named like sources."""
        return []

    def kernel_args(self) -> list[str]:
        """Flags for the kernel compiler."""
        return [EXACT_KERNELS]

    def toolchain(self) -> CheckOutcome:
        """The toolchain that compiles the op, by its name, or why none can.

        Raises:
            EnvironmentValueError: ACCEL_SYCL_TOOLCHAIN is not the name of a toolchain.
        """
        return choose(gather_facts(has_kernel_texts=bool(self.kernel_sources())))

    def recipe(self) -> Recipe:
        where = f"{type(self).__qualname__}."
        return (
            super()
            .recipe()
            ._replace(
                kernels=tuple(text_list(self.kernel_sources(), f"{where}kernel_sources()")),
                kernel_flags=tuple(flag_list(self.kernel_args(), f"{where}kernel_args()")),
                sycl_toolchain=self.toolchain().name,
            )
        )

    def load_checks(self) -> list[CheckOutcome]:
        return load_checks(self.toolchain, self.cache.memo, has_kernel_texts=bool(self.kernel_sources()))
