"""Native ops: from a declared op to a loaded module.

Importing this package does nothing else: no torch, no compiler, no device. The builders are
looked up when their name is first used; ``from op_builder import CPUAdamBuilder`` gives the
class for the current accelerator.
"""

from __future__ import annotations

from op_builder._version import __version__

TYPE_CHECKING = False  # as typing has it, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from op_builder.builder.base import OpBuilder as OpBuilder
    from op_builder.builder.cpu import CPUOpBuilder as CPUOpBuilder
    from op_builder.builder.cpu import TorchCPUOpBuilder as TorchCPUOpBuilder
    from op_builder.builder.cuda import CUDAOpBuilder as CUDAOpBuilder
    from op_builder.builder.inline import load_inline as load_inline
    from op_builder.builder.sycl import SYCLOpBuilder as SYCLOpBuilder
    from op_builder.plan import Binding as Binding

__all__ = [
    "Binding",
    "CPUOpBuilder",
    "CUDAOpBuilder",
    "OpBuilder",
    "SYCLOpBuilder",
    "TorchCPUOpBuilder",
    "__version__",
    "load_inline",
]

_BASES = frozenset(__all__) - {"__version__", "load_inline"}


def __getattr__(name: str) -> Any:
    if name in _BASES:
        from op_builder import builder

        return getattr(builder, name)
    if name == "load_inline":
        from op_builder.builder.inline import load_inline

        return load_inline
    if name.endswith("Builder"):
        from op_builder.catalog.device import current_accelerator
        from op_builder.errors import UnknownBuilderError, UnknownOpError

        try:
            return current_accelerator().get_op_builder(name)
        except UnknownOpError as error:
            # An ImportError, as an import's failure is; an AttributeError's text, with the near names, would be lost.
            raise UnknownBuilderError(error.message, error.remedy) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
