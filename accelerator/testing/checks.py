"""All checks, in the order in which they run."""

from __future__ import annotations

from accelerator.testing import (
    builders,
    devices,
    environment,
    graphs,
    identity,
    memory,
    number_types,
    random_numbers,
    streams,
    tensors,
)
from accelerator.testing.model import collect

CHECKS = collect(
    ("identity", identity.CHECKS),
    ("devices", devices.CHECKS),
    ("random numbers", random_numbers.CHECKS),
    ("streams and events", streams.CHECKS),
    ("memory", memory.CHECKS),
    ("number types", number_types.CHECKS),
    ("tensors", tensors.CHECKS),
    ("graphs", graphs.CHECKS),
    ("op builders", builders.CHECKS),
    ("environment", environment.CHECKS),
)
"""Every check of the kit."""
