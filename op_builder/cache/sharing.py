"""Caches of several users: ``python -m op_builder.cache init``."""

from __future__ import annotations

import os

from op_builder.cache import layout
from op_builder.cache.ownership import Refusal
from op_builder.cache.removal import folder
from op_builder.cache.store import Cache


def share(cache: Cache, group: int | None) -> None:
    """Make an empty cache that everybody may read, and that the members of ``group`` may write.

    Raises:
        CacheError: it cannot be made, or it has content already, which other users may have written.
    """
    root = cache.root
    with cache.errors_explained():
        cache.require_ours()
        for name in layout.GENERATED:
            with folder(root, name) as opened:
                if opened is not None and opened.names():
                    remedy = "Name a new directory with --directory, or clear this one first."
                    raise Refusal(f"it has content already ({name})", remedy).error(root)
        layout.take(root)
        mode = layout.OPEN_TO_READERS if group is None else layout.OPEN_TO_GROUP
        folders = [root / layout.HOME / name for name in layout.GENERATED]
        for directory in folders:
            layout.make_directory(directory, mode)
        for directory in (*folders, root / layout.HOME, root):
            if group is not None:
                os.chown(directory, -1, group)
            os.chmod(directory, mode)
        layout.sign(root, group)
