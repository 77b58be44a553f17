"""``run_conformance.py NAME ...``: the kit on fake devices; on ``npu.mutated``, each check with its mutation.

``xpu`` comes with IPEX; ``xpu.native`` is a torch built with XPU on a machine without IPEX.

Prints a line of JSON for each: the name, and {check: [status, note]}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from accelerator.testing import CHECKS, check_conformance
from tests.support.fake_vendors import fake_device, mutations


def results(name: str) -> dict[str, list[str]]:
    if name == "mps":
        fake_device.install_mps()  # no package to import brings it
    if name == "xpu.native":
        fake_device.install_xpu_without_ipex()
    device = name.partition(".")[0]
    module = importlib.import_module(f"accelerator.{device}_accelerator")
    accelerator = getattr(module, f"{device.upper()}_Accelerator")()
    if name != "npu.mutated":
        found = list(check_conformance(accelerator, fake_device.WITHOUT.get(name)).results)
    else:
        found = []
        for check in CHECKS:
            with mutations.MUTATIONS[check.name]():
                found.append(check.run(accelerator))
    return {result.check.name: [result.status, result.note] for result in found}


def main(names: list[str]) -> int:
    fake_device.native()
    status = 0
    for name in names:
        child = os.fork()  # a process can have one such device
        if child == 0:
            print(json.dumps([name, results(name)]), flush=True)
            os._exit(0)
        status |= os.waitpid(child, 0)[1]
    return min(status, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
