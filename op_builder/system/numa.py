"""NUMA nodes, as the kernel reports them."""

from __future__ import annotations

from pathlib import Path

from op_builder.system.cgroups import HostFiles, parse_index_list, read_text


def numa_directory(files: HostFiles) -> Path:
    """Where the kernel describes the nodes; missing without NUMA support."""
    return files.sysfs / "devices" / "system" / "node"


def numa_nodes(files: HostFiles) -> dict[int, frozenset[int]]:
    """The cores of each node that is online, by its number; a node with only memory has none."""
    nodes = numa_directory(files)
    online_text = read_text(nodes / "online")
    online = None if online_text is None else parse_index_list(online_text)
    numbers = sorted(int(directory.name[4:]) for directory in nodes.glob("node[0-9]*"))
    return {
        number: parse_index_list(read_text(nodes / f"node{number}" / "cpulist") or "")
        for number in numbers
        if online is None or number in online
    }
