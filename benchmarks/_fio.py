"""fio as a peer: one sequential job on one file, past the page cache."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Transfer:
    """What one contender took for one transfer of the whole file."""

    seconds: float
    cpu_s: float


def is_there() -> bool:
    """Whether fio is installed."""
    return shutil.which("fio") is not None


def has_large_pages(buffer_bytes: int) -> bool:
    """Whether the system has reserved free large pages for buffers of that size: fio asks for no others."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return False
    facts = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    page_bytes = facts.get("Hugepagesize", 0) << 10
    return facts.get("HugePages_Free", 0) * page_bytes >= buffer_bytes + page_bytes > 0


def run(path: Path, size_bytes: int, direction: str, engine: str, block_bytes: int, depth: int) -> Transfer:
    """Read or write the file once; the time is fio's own, without its start.

    It gets what makes it faster here: buffers in large pages where the system has reserved some, registered with
    io_uring, and with many small commands in flight a quarter of them handed over and taken back at a time.

    Raises:
        RuntimeError: fio failed; the message ends with what it wrote.
    """
    options = {
        "name": "peer",
        "filename": path,
        "size": size_bytes,
        "rw": direction,
        "bs": block_bytes,
        "ioengine": engine,
        "iodepth": depth,
        "direct": 1,
        "scramble_buffers": 0,  # it would spend time on making each block another
        "output-format": "json",
    }
    if engine == "io_uring":
        options |= {"fixedbufs": 1, "iomem_align": "2M"}
    if has_large_pages(block_bytes * depth):
        options["iomem"] = "mmaphuge"
    if block_bytes * depth < 1 << 20:
        batch = max(1, depth // 4)
        options |= {"iodepth_batch_submit": batch, "iodepth_batch_complete_min": batch}
        options["iodepth_batch_complete_max"] = depth
    command = ["fio", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}{done.stdout[-2000:]}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    seconds = job[direction]["io_bytes"] / job[direction]["bw_bytes"]
    return Transfer(seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000)
