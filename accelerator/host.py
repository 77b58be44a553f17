"""The host's NUMA nodes and memory, and this process's resident memory."""

from __future__ import annotations

import os

from op_builder.system import cgroups
from op_builder.system.cgroups import HostFiles
from op_builder.system.numa import numa_nodes


class HostResources:
    """The host as the kernel's files show it; sizes are bytes.

    The peak of the resident set size (RSS) is the kernel's high-water mark, which includes peaks between two calls. If
    the kernel has none or denies the reset, the peak is the largest value that :meth:`rss` has returned.
    """

    def __init__(self, files: HostFiles | None = None) -> None:
        self._files = HostFiles() if files is None else files
        self._reset()

    def _reset(self) -> None:
        self._process_id = os.getpid()
        self._uses_kernel_peak = True
        self._largest_seen = 0

    def numa_node_count(self) -> int:
        """Number of NUMA nodes with cores that this process's cpuset leaves to it, at least 1.

        Nodes without cores (HBM in flat mode, CXL) do not count, and nodes with the same cores (the kernel's fake NUMA)
        count once. The affinity mask does not matter: the siblings of a bound rank run on other nodes.
        """
        allowed, nodes = cgroups.allowed_cores(self._files), numa_nodes(self._files).values()
        return max(1, len({cores for cores in nodes if cores and (allowed is None or cores & allowed)}))

    def total_memory(self) -> int:
        """The machine's memory, or the limit of the cgroup."""
        return cgroups.total_memory_bytes(self._files)

    def available_memory(self) -> int:
        """The free memory, within that limit."""
        return cgroups.available_memory_bytes(self._files)

    def rss(self) -> int:
        """RSS of this process now."""
        if self._process_id != os.getpid():  # a forked child: the peak is the parent's
            self._reset()
        import psutil

        rss = psutil.Process().memory_info().rss
        self._largest_seen = max(self._largest_seen, rss)
        return rss

    def peak_rss(self) -> int:
        """Largest RSS since the process began, or since :meth:`reset_peak_rss`."""
        self.rss()
        if self._uses_kernel_peak:
            for line in (cgroups.read_text(self._files.procfs / "self" / "status") or "").splitlines():
                if line.startswith("VmHWM:"):
                    self._largest_seen = max(self._largest_seen, int(line.split()[1]) * 1024)
        return self._largest_seen

    def reset_peak_rss(self) -> None:
        """Reset the peak to the current RSS."""
        self._reset()
        try:
            # open() would create the file.
            descriptor = os.open(self._files.procfs / "self" / "clear_refs", os.O_WRONLY)
            with open(descriptor, "wb", buffering=0) as file:
                file.write(b"5")  # 5: only the high-water mark, see proc_pid_clear_refs(5)
        except OSError:
            self._uses_kernel_peak = False
        self.rss()
