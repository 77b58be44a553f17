"""The builders of Acme's ops: what ``get_accelerator().create_op_builder()`` finds on an Acme card.

Every ``*Builder`` class in this package and its modules is an op. The host's builders serve every device, so they are
re-exported; without these lines this device would not have them.
"""

from __future__ import annotations

from op_builder.cpu import (
    CPUAdagradBuilder,
    CPUAdamBuilder,
    CPULambBuilder,
    CPULionBuilder,
    CPUSGDBuilder,
)

__all__ = [
    "CPUAdagradBuilder",
    "CPUAdamBuilder",
    "CPULambBuilder",
    "CPULionBuilder",
    "CPUSGDBuilder",
]
