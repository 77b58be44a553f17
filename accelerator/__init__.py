"""The device of this process behind one interface.

``get_accelerator()`` returns an object for the detected device; code that uses it runs on every device. Importing this
package neither imports torch nor detects a device; the first use of a name below does.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers know the name; importing typing would be most of this import's time
if TYPE_CHECKING:
    from accelerator.abstract_accelerator import Accelerator, DeepSpeedAccelerator
    from accelerator.real_accelerator import (
        SUPPORTED_ACCELERATOR_LIST,
        get_accelerator,
        is_current_accelerator_supported,
        set_accelerator,
    )

__all__ = [
    "SUPPORTED_ACCELERATOR_LIST",
    "Accelerator",
    "DeepSpeedAccelerator",
    "get_accelerator",
    "is_current_accelerator_supported",
    "set_accelerator",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'accelerator' has no attribute {name!r}")
    if _is_deepspeed_importing():
        # DeepSpeed prefers a top-level package of this name, which it expects to be its own, to deepspeed.accelerator.
        # Without this error, an installed accel-ops would change what DeepSpeed reports and loads.
        raise AttributeError("DeepSpeed uses deepspeed.accelerator; op_builder.integrations.deepspeed switches it")
    from accelerator import abstract_accelerator, real_accelerator

    # Not kept in globals(), where DeepSpeed would find it.
    value: object = getattr(abstract_accelerator if name.endswith("Accelerator") else real_accelerator, name)
    return value


def _is_deepspeed_importing() -> bool:
    """Whether a module of DeepSpeed asks for a name of this package."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back  # "from accelerator import name" asks through importlib first
    return f"{frame.f_globals.get('__name__', '')}.".startswith("deepspeed.")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
