"""``run_conformance.py NAME [MUTATION ...]``: the kit on a fake device, whole and with one thing broken at a time.

Prints one JSON object: {"": results of the whole device, mutation: {failed check: reason}}.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import fake_device
import mutations

from accelerator.testing import Ability, check_conformance


def main(name: str, broken: list[str]) -> dict[str, Any]:
    if name == "mps":
        fake_device.install_mps()  # no package to import brings it
    accelerator = getattr(importlib.import_module(f"accelerator.{name}_accelerator"), f"{name.upper()}_Accelerator")()
    lacks = {Ability(ability): reason for ability, reason in fake_device.LACKS.get(name, {}).items()}
    answer: dict[str, Any] = {}
    if not broken:
        answer[""] = {r.name: [r.status, r.note] for r in check_conformance(accelerator, lacks).results}
    for mutation in broken:
        with mutations.MUTATIONS[mutation].apply(name):
            answer[mutation] = {r.name: r.note for r in check_conformance(accelerator, lacks).failures}
    return answer


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
