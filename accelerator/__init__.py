"""Which device am I on, and what can it do.

``get_accelerator()`` gives one object that answers for the device of this process; code written
against it runs on every device. Importing this package imports no torch and detects nothing:
both happen when one of the names below is first used.
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
