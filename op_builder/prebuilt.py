"""Ops that were built into the installed wheel.

They lie below ``op_builder/_prebuilt``, laid out as in the cache: a binary beside its manifest.
What does not fit is passed over with a reason, never an error while another way is left.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from op_builder.cache.store import Cache, Entry
from op_builder.torch_install import MINIMUM_TORCH, parse_release, torch_install


@dataclass(frozen=True)
class Rejected:
    """A prebuilt binary that does not fit this process, and why."""

    entry: Entry
    reason: str


def prebuilt_root() -> Path:
    """Where a wheel holds its prebuilt ops."""
    return Path(__file__).resolve().parent / "_prebuilt"


def find_prebuilt(op: str, root: Path | None = None) -> Entry | Rejected | None:
    """The prebuilt binary of ``op``; one that does not fit, with the reason; None when there is none."""
    rejected: Rejected | None = None
    for entry in Cache(root or prebuilt_root()).entries(op):
        reason = _misfit(entry)
        if reason is None:
            return entry
        rejected = Rejected(entry, reason)
    return rejected


def _misfit(entry: Entry) -> str | None:
    manifest = entry.manifest
    here = f"{sys.platform} {platform.machine()}"
    built_for = manifest.key_parts.get("platform")
    if built_for != here:
        return f"it was built for {built_for}, this is {here}"
    install = torch_install()
    if manifest.kind == "accel":
        if install.release < MINIMUM_TORCH:
            return f"it needs torch >= {'.'.join(map(str, MINIMUM_TORCH))}, this is {install.version}"
    else:
        if parse_release(manifest.torch) != install.release:
            return f"it was built with torch {manifest.torch}, this is {install.version}"
        python_abi = str(sysconfig.get_config_var("EXT_SUFFIX"))
        if manifest.key_parts.get("python abi") != python_abi:
            return f"it was built for Python ABI {manifest.key_parts.get('python abi')}, this is {python_abi}"
    if not entry.is_intact():
        return "its binary does not match its manifest (altered or truncated)"
    return None
