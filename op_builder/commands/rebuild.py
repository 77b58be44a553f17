"""``accel-ops cache verify --rebuild``: whether compiling again gives an entry's bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from op_builder.cache.key import plan_key
from op_builder.cache.manifest import Manifest
from op_builder.cache.store import Cache, Entry
from op_builder.catalog.named import find_op
from op_builder.command_line import printable
from op_builder.device import requested_package
from op_builder.engine.build import build
from op_builder.errors import AccelError
from op_builder.plan import PlanFacts
from op_builder.system.records import Memo
from op_builder.toolchains.toolset import find_toolset


@dataclass(frozen=True)
class Rebuilt:
    """The result of compiling an entry's op again.

    Attributes:
        difference: where the binaries begin to differ; empty if all bytes are equal.
        reason: why it was not compiled, or that files have changed; empty if the binaries were compared.
    """

    entry: Entry
    difference: str = ""
    reason: str = ""

    def __str__(self) -> str:
        result = "equal"
        if self.reason:
            result = f"not compared: {self.reason}"
        elif self.difference:
            result = f"different: {self.difference}"
        return printable(f"{self.entry.manifest.op} {self.entry.digest[:12]}: {result}")


def rebuild(cache: Cache, entries: Iterable[Entry]) -> list[Rebuilt]:
    """Compile the ops of entries again, each in a new directory, and compare the binaries. The entries stay."""
    _, package = requested_package()
    return [_rebuilt(entry, package, cache.memo) for entry in entries]


def _rebuilt(entry: Entry, package: str, memo: Memo) -> Rebuilt:
    manifest = entry.manifest
    if manifest.kind == "header":
        return Rebuilt(entry, reason="GCC makes no two precompiled headers alike")
    try:
        archs = tuple(manifest.cuda_archs) or None
        plan = find_op(manifest.op, package).plan(PlanFacts(memo, cuda_archs=archs))
        toolset = find_toolset(plan, memo)
        key = plan_key(plan, toolset, memo)
        if key.parts != manifest.key_parts:
            names = {*key.parts, *manifest.key_parts}
            changed = sorted(name for name in names if key.parts.get(name) != manifest.key_parts.get(name))
            return Rebuilt(entry, reason=f"changed since it was built: {', '.join(changed)}")
        with tempfile.TemporaryDirectory(prefix="accel-rebuild-") as name:
            made = build(plan, key, toolset, Cache(Path(name) / "cache"))
            if made.digest != entry.digest:
                before, now = _inputs(manifest), _inputs(made.manifest)
                changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
                return Rebuilt(entry, reason=f"changed since it was built: {', '.join(changed)}")
            return Rebuilt(entry, _difference(entry.artifact.read_bytes(), made.artifact.read_bytes()))
    except AccelError as error:
        return Rebuilt(entry, reason=error.message)
    except OSError as error:
        return Rebuilt(entry, reason=str(error))


def _inputs(manifest: Manifest) -> dict[str, str]:
    """What a build read, and the places that had no file, with digests."""
    read = {f"{header.root}/{header.path}": header.sha256 for header in manifest.headers}
    system = manifest.system_headers
    return {**read, **dict.fromkeys(manifest.absent, ""), "system headers": f"{system.paths} {system.sha256}"}


def _difference(before: bytes, now: bytes) -> str:
    """Where two binaries begin to differ; empty if they do not."""
    if before == now:
        return ""
    shorter = min(len(before), len(now))
    at = next((at for at in range(shorter) if before[at] != now[at]), shorter)
    return f"from byte {at} of {len(before)} on"
