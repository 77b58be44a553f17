"""fio as a peer: one sequential job on one file, without the page cache."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks._peers import failure


@dataclass(frozen=True)
class Transfer:
    """The cost of one transfer of the whole file."""

    seconds: float
    cpu_s: float


def is_installed() -> bool:
    """Whether fio is on PATH."""
    return shutil.which("fio") is not None


def has_large_pages(buffer_bytes: int) -> bool:
    """Whether the system has enough free reserved large pages for buffers of that size; fio uses no others."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return False
    facts = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    page_bytes = facts.get("Hugepagesize", 0) << 10
    return facts.get("HugePages_Free", 0) * page_bytes >= buffer_bytes + page_bytes > 0


def run(path: Path, size_bytes: int, direction: str, engine: str, block_bytes: int, depth: int) -> Transfer:
    """Read or write the file once; the time is fio's own, without its start.

    fio gets the options that make it fastest: buffers in large pages if the system has reserved them, registered
    buffers with io_uring, and with many small commands in flight a quarter of them in each submission and completion.

    Raises:
        RuntimeError: fio failed.
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
        "scramble_buffers": 0,  # takes time to make each block different
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
        raise failure(command, done.returncode, done.stdout + done.stderr)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    seconds = job[direction]["io_bytes"] / job[direction]["bw_bytes"]
    return Transfer(seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000)
