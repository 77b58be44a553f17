"""``run_conformance.py NAME ...``: the conformance suite on fake devices; ``npu.mutated`` breaks each test's subject.

Prints a line of JSON for each: the name, and {test: [outcome, message]}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator

import pytest

from tests.support.conformance import run_suite
from tests.support.fake_vendors import fake_device
from tests.support.fake_vendors.mutations import MUTATIONS


class Mutator:
    """A pytest plugin that breaks the device in one place for each test."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        with MUTATIONS[item.name.removeprefix("test_")]():
            yield


def outcomes(name: str) -> dict[str, tuple[str, str]]:
    if name == "mps":
        fake_device.install_mps()  # no package to import brings it
    plugins = [Mutator()] if name == "npu.mutated" else []
    selected = fake_device.SELECTED.get(name, "")
    return run_suite("--accelerator", name.partition(".")[0], "-k", selected, plugins=plugins)


def main(names: list[str]) -> int:
    fake_device.native()
    status = 0
    for name in names:
        child = os.fork()  # a process can have one such device
        if child == 0:
            print(json.dumps([name, outcomes(name)]), flush=True)
            os._exit(0)
        status |= os.waitpid(child, 0)[1]
    return min(status, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
