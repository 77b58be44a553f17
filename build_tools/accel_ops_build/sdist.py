"""Makes an sdist reproducible."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path


def fix_times(sdist: Path) -> None:
    """Give every file the time in SOURCE_DATE_EPOCH and no owner. setuptools does so only for wheels."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    staged = sdist.with_suffix(".staged")
    with (
        tarfile.open(sdist) as before,
        open(staged, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in before:
            content = before.extractfile(member)
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}  # they would keep the times
            after.addfile(member, content)
    staged.replace(sdist)
