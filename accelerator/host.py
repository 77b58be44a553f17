"""What the host has: NUMA nodes that can compute, memory, and what this process holds of it."""

from __future__ import annotations

import os

from op_builder.system import cgroups
from op_builder.system.cgroups import HostFiles
from op_builder.system.numa import numa_nodes


class Host:
    """The host as the kernel's files show it; sizes are bytes.

    The peak of the resident set size (RSS) is the kernel's high-water mark, which also sees what
    happened between two calls. Where the kernel keeps none, or does not let this process restart
    it, the peak is the largest value seen here.
    """

    def __init__(self, files: HostFiles | None = None) -> None:
        self._files = HostFiles() if files is None else files
        self._start_over()

    def _start_over(self) -> None:
        self._process_id = os.getpid()
        self._kernel_mark_counts = True
        self._largest_seen = 0

    def numa_node_count(self) -> int:
        """Number of NUMA nodes with cores that this process's cpuset leaves to it, at least 1.

        A node without cores is memory only (HBM in flat mode, CXL) and does not count. Nodes that
        share one set of cores are one piece of hardware (the kernel's fake NUMA) and count once.
        The cpuset is asked, not the affinity: a rank that was bound to one node still has siblings.
        """
        allowed, nodes = cgroups.allowed_cores(self._files), numa_nodes(self._files).values()
        return max(1, len({cores for cores in nodes if cores and (allowed is None or cores & allowed)}))

    def total_memory(self) -> int:
        """The machine's memory, or what the cgroup allows."""
        return cgroups.total_memory_bytes(self._files)

    def available_memory(self) -> int:
        """What of that nobody uses."""
        return cgroups.available_memory_bytes(self._files)

    def rss(self) -> int:
        """RSS of this process now."""
        if self._process_id != os.getpid():  # in a forked child: the peak is the parent's
            self._start_over()
        import psutil  # not at the top: it takes longer to import than the rest of a warm load

        rss = psutil.Process().memory_info().rss
        self._largest_seen = max(self._largest_seen, rss)
        return rss

    def peak_rss(self) -> int:
        """Largest RSS since the process began, or since :meth:`reset_peak_rss`."""
        self.rss()
        if self._kernel_mark_counts:
            for line in (cgroups.read_text(self._files.procfs / "self" / "status") or "").splitlines():
                if line.startswith("VmHWM:"):
                    self._largest_seen = max(self._largest_seen, int(line.split()[1]) * 1024)
        return self._largest_seen

    def reset_peak_rss(self) -> None:
        """Start the peak anew from the present RSS."""
        self._start_over()
        try:
            # open() would create the file.
            descriptor = os.open(self._files.procfs / "self" / "clear_refs", os.O_WRONLY)
            with open(descriptor, "wb", buffering=0) as file:
                file.write(b"5")  # 5: only the high-water mark, see proc_pid_clear_refs(5)
        except OSError:
            self._kernel_mark_counts = False
        self.rss()
