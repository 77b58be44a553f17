"""Makes an sdist reproducible."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path


def fix_times(sdist: Path) -> None:
    """Give every file the time in SOURCE_DATE_EPOCH, if it is set, and no owner.

    setuptools does so for wheels, but not for an sdist: https://reproducible-builds.org/docs/source-date-epoch.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return
    staged = sdist.with_suffix(".staged")
    with (
        tarfile.open(sdist) as before,
        open(staged, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in before:
            content = before.extractfile(member)
            member.mtime, member.uid, member.gid, member.uname, member.gname = int(epoch), 0, 0, "", ""
            member.pax_headers = {}
            after.addfile(member, content)
    staged.replace(sdist)
