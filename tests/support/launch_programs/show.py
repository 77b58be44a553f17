"""Writes a rank's variables, its CPUs, the memory policies of its pages and the command lines of all processes."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import psutil

found: dict[str, Any] = {**os.environ, "arguments": sys.argv[1:], "name": __name__, "host": os.uname().nodename}
allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", Path("/proc/self/status").read_text())
found["cpus"] = allowed and allowed[1]
try:
    found["policies"] = sorted({line.split()[1] for line in Path("/proc/self/numa_maps").read_text().splitlines()})
except OSError:
    found["policies"] = None
found["command_lines"] = str([process.info["cmdline"] for process in psutil.process_iter(["cmdline"])])
Path(f"rank{found['RANK']}.json").write_text(json.dumps(found))
print("rank", found["RANK"])
print("shown by", found["RANK"], file=sys.stderr)
