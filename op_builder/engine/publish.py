"""From a finished build directory to a cache entry: only the binary and its manifest."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from pathlib import Path

from op_builder._version import __version__
from op_builder.cache.eviction import keep_in_bounds
from op_builder.cache.key import BuildKey
from op_builder.cache.store import Cache, Entry, Manifest
from op_builder.engine.try_load import Inspection
from op_builder.plan import BuildPlan
from op_builder.system.file_contents import file_sha256
from op_builder.system.torch_install import torch_install


def publish(
    cache: Cache,
    plan: BuildPlan,
    artifact: Path,
    key: BuildKey,
    inspection: Inspection,
    build_s: float,
    keep: Iterable[str],
) -> Entry:
    """Publish the file that a build of ``plan`` made; other files of its directory are left to be removed.

    Args:
        build_s: seconds the build took.
        keep: names of the files that go with the binary.

    Raises:
        CacheError: the disk is full or the cache cannot be written.
    """
    manifest = Manifest(
        op=plan.op,
        artifact=artifact.name,
        size_bytes=artifact.stat().st_size,
        sha256=file_sha256(str(artifact)),
        key_parts=dict(key.plan.parts),
        headers=key.headers,
        absent=key.absent,
        system_headers=key.system,
        built_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        build_s=round(build_s, 3),
        torch=torch_install().version if plan.binding.uses_torch else "",
        accel_ops=__version__,
        **vars(inspection),
    )
    result = artifact.parent / "result"
    result.mkdir()
    for name in (artifact.name, *keep):
        os.rename(artifact.parent / name, result / name)
    entry = cache.publish(result, manifest)
    keep_in_bounds(cache)
    return entry
