"""``run_conformance.py NAME [mutated]``: the kit on a fake device, whole or with one thing broken at a time.

``xpu`` comes with IPEX; ``xpu.native`` is a torch built with XPU on a machine without IPEX.

Prints JSON: {check: [status, note]} of the whole device, or {failed check: reason} for each mutation.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from accelerator.testing import Ability, check_conformance
from accelerator.testing.tensors import MemoryChecks
from tests.support.fake_vendors import fake_device, mutations

CHILD = "visible_devices_are_honoured"


def main(name: str, what: list[str]) -> Any:
    if name == "mps":
        fake_device.install_mps()  # no package to import brings it
    if name == "xpu.native":
        fake_device.install_xpu_without_ipex()
    device = name.partition(".")[0]
    module = importlib.import_module(f"accelerator.{device}_accelerator")
    accelerator = getattr(module, f"{device.upper()}_Accelerator")()
    lacks = {Ability(ability): reason for ability, reason in fake_device.LACKS.get(name, {}).items()}
    if not what:
        return {r.check.name: [r.status, r.note] for r in check_conformance(accelerator, lacks).results}
    # Sixty times the whole kit: smaller tensors than real devices need, where allocators round and others allocate.
    MemoryChecks.block_bytes, MemoryChecks.slack_bytes = 16 << 20, 2 << 20
    answers = []
    for mutation in mutations.MUTATIONS:
        # The check that starts a process takes longer than all others, and only some mutations reach a child.
        childless = {} if CHILD in mutation.failing else {Ability.CHILD_PROCESSES: "nothing is broken there"}
        accelerator.reset_peak_memory_stats()  # as in a process of its own
        with mutation.apply(name):
            failures = check_conformance(accelerator, {**lacks, **childless}).failures
        answers.append({r.check.name: r.note for r in failures})
    return answers


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
