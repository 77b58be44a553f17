"""The device of this process behind one interface.

``get_accelerator()`` returns an object for the detected device; code that uses it runs on every device. Importing this
package neither imports torch nor detects a device; the first use of a name below does.
"""

from __future__ import annotations

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
    from accelerator import abstract_accelerator, real_accelerator

    value: object = getattr(abstract_accelerator if name.endswith("Accelerator") else real_accelerator, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
