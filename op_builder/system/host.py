"""The identity of this host."""

from __future__ import annotations

import socket
from pathlib import Path


def boot_id() -> str:
    """Identifies the running kernel; empty where it has no such id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def this_host() -> str:
    """A name for this host that no other running host has, even if both are called ``localhost``."""
    return f"{socket.gethostname()}-{boot_id()[:8]}"
