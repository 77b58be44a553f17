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
from typing import TYPE_CHECKING

from op_builder.cache.store import Cache, Entry
from op_builder.errors import AccelError
from op_builder.fingerprint import recipe_parts
from op_builder.plan import make_plan
from op_builder.torch_install import MINIMUM_TORCH, parse_release, torch_install

if TYPE_CHECKING:
    from op_builder.base import OpBuilder


@dataclass(frozen=True)
class Rejected:
    """A prebuilt binary that does not fit this process, and why."""

    entry: Entry
    reason: str


def prebuilt_root() -> Path:
    """Where a wheel holds its prebuilt ops."""
    return Path(__file__).resolve().parent / "_prebuilt"


def find_prebuilt(builder: OpBuilder, root: Path | None = None) -> Entry | Rejected | None:
    """The prebuilt binary of an op; one that does not fit, with the reason; None when there is none."""
    rejected: Rejected | None = None
    for entry in Cache(root or prebuilt_root(), is_ours=False).entries(builder.name):
        reason = _misfit(entry) or _other_recipe(entry, builder)
        if reason is None:
            return entry
        rejected = Rejected(entry, reason)
    return rejected


def _other_recipe(entry: Entry, builder: OpBuilder) -> str | None:
    """Why ``entry`` is not this builder's op as it is now: another of the same name, or edited since."""
    try:
        plan = make_plan(builder)
    except AccelError:
        return None  # a wheel may carry binaries without their sources
    recipe = recipe_parts(plan)
    other = sorted(name for name in recipe if entry.manifest.key_parts.get(name) != recipe[name])
    return f"it was built from another recipe ({', '.join(other)})" if other else None


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
