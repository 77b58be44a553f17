"""What the host has: NUMA nodes that can compute, and what this process holds in memory."""

from __future__ import annotations

import os

from op_builder.cgroups import HostFiles, allowed_cores, read_text
from op_builder.numa import numa_nodes


def numa_node_count(files: HostFiles) -> int:
    """Number of NUMA nodes with cores that this process's cpuset leaves to it, at least 1.

    A node without cores is memory only (HBM in flat mode, CXL) and does not count. Nodes that
    share one set of cores are one piece of hardware (the kernel's fake NUMA) and count once.
    The cpuset is asked, not the affinity: a rank that was bound to one node still has siblings.
    """
    allowed = allowed_cores(files)
    core_sets = {cores for cores in numa_nodes(files).values() if cores and (allowed is None or cores & allowed)}
    return max(1, len(core_sets))


class ResidentMemory:
    """The resident set size (RSS) of this process and its peak, in bytes.

    The peak is the kernel's high-water mark, which also sees what happened between two calls.
    Where the kernel keeps none, or does not let this process restart it, the peak is the largest
    value seen here.
    """

    def __init__(self, files: HostFiles) -> None:
        self._self = files.procfs / "self"
        self._start_over()

    def _start_over(self) -> None:
        self._process_id = os.getpid()
        self._kernel_mark_counts = True
        self._largest_seen = 0

    def current(self) -> int:
        """RSS now."""
        if self._process_id != os.getpid():  # in a forked child: the peak is the parent's
            self._start_over()
        import psutil  # not at the top: it takes longer to import than the rest of a warm load

        rss = psutil.Process().memory_info().rss
        self._largest_seen = max(self._largest_seen, rss)
        return rss

    def peak(self) -> int:
        """Largest RSS since the process began, or since :meth:`reset`."""
        self.current()
        if self._kernel_mark_counts:
            for line in (read_text(self._self / "status") or "").splitlines():
                if line.startswith("VmHWM:"):
                    self._largest_seen = max(self._largest_seen, int(line.split()[1]) * 1024)
        return self._largest_seen

    def reset(self) -> None:
        """Start the peak anew from the present RSS."""
        self._start_over()
        try:
            descriptor = os.open(self._self / "clear_refs", os.O_WRONLY)  # open() would create the file
            with open(descriptor, "wb", buffering=0) as file:
                file.write(b"5")  # 5: only the high-water mark, see proc_pid_clear_refs(5)
        except OSError:
            self._kernel_mark_counts = False
        self.current()
