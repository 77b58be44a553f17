"""Record what the launcher reads of a machine, as one JSON file of paths and texts.

    python record.py [ROOT] > NAME.json

ROOT is ``/`` or a directory with copies of a machine's ``sys`` and ``proc``. Kernels before 2.6.33 wrote masks of CPUs
where newer ones write lists too: of those the list is made from the mask.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from accelerator.launch.lists import format_list

_WHOLE = (
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id",
    "sys/devices/system/node/online",
    "sys/devices/system/node/node[0-9]*/distance",
    "sys/devices/system/node/node[0-9]*/access0/initiators/read_bandwidth",
    "proc/self/cgroup",
    "sys/fs/cgroup/**/cpu.max",
    "sys/fs/cgroup/**/cpuset.cpus.effective",
)
_LISTS = (  # beside what a list may stand under an older name: the mask's
    ("sys/devices/system/cpu/cpu[0-9]*/topology", "thread_siblings_list", "thread_siblings"),
    ("sys/devices/system/node/node[0-9]*", "cpulist", "cpumap"),
)
_LINES = (
    ("proc/cpuinfo", r"^model name.*\n|^cpu\s*:.*\n"),
    ("proc/self/status", r"^(?:Cpus|Mems)_allowed_list:.*\n"),
    ("sys/devices/system/node/node[0-9]*/meminfo", r"^.*MemTotal:.*\n"),
)
_CACHE = ("level", "type", "size", "shared_cpu_list")


def record(root: Path) -> dict[str, str]:
    """The texts by their paths below ``root``."""
    # Some tools that copy such trees fill the copies up with zeros.
    return dict(sorted((path.relative_to(root).as_posix(), text.rstrip("\0")) for path, text in _texts(root)))


def _texts(root: Path) -> Iterator[tuple[Path, str]]:
    for pattern in _WHOLE:
        for path in root.glob(pattern):
            with contextlib.suppress(OSError):  # a control group may have ended meanwhile
                yield path, path.read_text()
    for directories, listed, masked in _LISTS:
        for directory in root.glob(directories):
            path = directory / listed
            if path.exists():
                yield path, path.read_text()
            elif (directory / masked).exists():
                bits = int((directory / masked).read_text().replace(",", ""), 16)
                yield path, format_list([n for n in range(bits.bit_length()) if bits >> n & 1]) + "\n"
    for pattern, line in _LINES:
        for path in root.glob(pattern):
            if found := re.search(line, path.read_text(), re.MULTILINE):
                yield path, found[0]
    for index in root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"):
        # One description of each cache is enough: that of the first CPU that has it.
        first = re.match(r"\d+", (index / _CACHE[-1]).read_text()) if (index / _CACHE[-1]).exists() else None
        if first and f"cpu{first[0]}" == index.parent.parent.name:
            yield from ((index / name, (index / name).read_text()) for name in _CACHE)


if __name__ == "__main__":
    json.dump(record(Path(sys.argv[1] if len(sys.argv) > 1 else "/")), sys.stdout, indent=0)
    print()
