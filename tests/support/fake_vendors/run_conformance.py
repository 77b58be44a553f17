"""``run_conformance.py NAME [mutated]``: the kit on a fake device, or each check with its mutation.

``xpu`` comes with IPEX; ``xpu.native`` is a torch built with XPU on a machine without IPEX.

Prints JSON: {check: [status, note]}.
"""

from __future__ import annotations

import importlib
import json
import sys

from accelerator.testing import CHECKS, check_conformance
from tests.support.fake_vendors import fake_device, mutations


def main(name: str, is_mutated: bool) -> dict[str, list[str]]:
    if name == "mps":
        fake_device.install_mps()  # no package to import brings it
    if name == "xpu.native":
        fake_device.install_xpu_without_ipex()
    device = name.partition(".")[0]
    module = importlib.import_module(f"accelerator.{device}_accelerator")
    accelerator = getattr(module, f"{device.upper()}_Accelerator")()
    if not is_mutated:
        results = list(check_conformance(accelerator, fake_device.WITHOUT.get(name)).results)
    else:
        results = []
        for check in CHECKS:
            with mutations.MUTATIONS[check.name]():
                results.append(check.run(accelerator))
    return {result.check.name: [result.status, result.note] for result in results}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:] == ["mutated"])))
