"""Native ops: from a declared op to a loaded module.

Importing this package imports neither torch nor a compiler and opens no device. Each name below is imported when it is
first used; ``from op_builder import CPUAdamBuilder`` gives the class for the current accelerator.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from op_builder._version import __version__ as __version__
    from op_builder.builder import Binding as Binding
    from op_builder.builder import CPUOpBuilder as CPUOpBuilder
    from op_builder.builder import CUDAOpBuilder as CUDAOpBuilder
    from op_builder.builder import OpBuilder as OpBuilder
    from op_builder.builder import SYCLOpBuilder as SYCLOpBuilder
    from op_builder.builder import TorchCPUOpBuilder as TorchCPUOpBuilder
    from op_builder.builder import load_inline as load_inline

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


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from op_builder import _version

        return _version.__version__
    if name == "__deepspeed__":
        _switch_deepspeed()
    if name in __all__:
        from op_builder import builder

        return getattr(builder, name)
    if name.endswith("Builder"):
        from op_builder.catalog.named import current_builder
        from op_builder.errors import UnknownBuilderError, UnknownOpError

        try:
            return current_builder(name)
        except UnknownOpError as error:
            # An ImportError, because the import statement would replace an AttributeError's message.
            raise UnknownBuilderError(error.message, error.remedy) from None
    if name[0].isupper():  # not a submodule
        from op_builder.errors import UnknownBuilderError
        from op_builder.messages import did_you_mean
        from op_builder.ops import __all__ as front_ends

        if near := did_you_mean(name, (f"op_builder.ops.{each}" for each in front_ends), common="op_builder.ops."):
            raise UnknownBuilderError(f"op_builder has no {name}.", near)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_deepspeed_keeps_its_ops = False


def _switch_deepspeed() -> None:
    """With ACCEL_DEEPSPEED=1, switch DeepSpeed to this library. DeepSpeed's import looks up a name of this package."""
    global _deepspeed_keeps_its_ops
    from op_builder import env

    if _deepspeed_keeps_its_ops:
        return  # the reason was logged when DeepSpeed looked up its first builder
    try:
        if env.ACCEL_DEEPSPEED.get():
            import importlib
            import sys

            if "deepspeed.accelerator.real_accelerator" not in sys.modules:
                return  # too early; DeepSpeed will look it up again
            # By name: no layer of this package depends on the integrations.
            importlib.import_module("op_builder.integrations.deepspeed")
    except Exception as error:  # DeepSpeed's import must not fail
        import logging

        _deepspeed_keeps_its_ops = True

        logging.getLogger(__name__).warning("DeepSpeed keeps its own ops: %s", error)
