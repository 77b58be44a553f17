"""The conformance suite: does an accelerator implement the whole contract?

The package is a pytest plugin, which adds the option ``--accelerator`` and the fixture of that name. Its ``test_*.py``
files are the suite; the docstring of each test states in one sentence what it proves.
``python -m accelerator.conformance`` runs ``pytest -p accelerator.testing --pyargs accelerator.testing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import torch

from accelerator.errors import AcceleratorSelectionError
from accelerator.real_accelerator import get_accelerator
from accelerator.selection import choose
from op_builder import env

_ACCELERATOR = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "the accelerator to check: cpu, cuda, ... or a plug-in's name (default: the current accelerator)"
    parser.addoption("--accelerator", metavar="NAME", help=text)


def pytest_configure(config: pytest.Config) -> None:
    scope = ExitStack()
    config.add_cleanup(scope.close)
    name: str | None = config.getoption("accelerator")
    try:
        if name is None:
            accelerator = get_accelerator()
        else:
            scope.enter_context(env.scope(ACCEL_ACCELERATOR=name, DS_ACCELERATOR=None))
            accelerator = choose().require()
    except AcceleratorSelectionError as error:
        raise pytest.UsageError(str(error)) from error
    if not accelerator.is_available():
        raise pytest.UsageError(
            f"No device of {type(accelerator).__name__} is available, and the suite needs one. "
            "Run it on a machine with the device and its driver."
        )
    config.stash[_ACCELERATOR] = accelerator


def pytest_report_header(config: pytest.Config) -> str:
    accelerator = config.stash[_ACCELERATOR]
    cls = type(accelerator)
    return f"accelerator: {accelerator.device_name()} ({cls.__module__}.{cls.__qualname__})"


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The accelerator under test; the current device and the generators are restored after each test."""
    accelerator = request.config.stash[_ACCELERATOR]
    device, states = None, {}
    with suppress(Exception):
        device = accelerator.current_device()
        states = {index: accelerator.get_rng_state(index) for index in devices(accelerator)}
    yield accelerator
    with suppress(Exception):
        accelerator.set_device(device)
        for index, state in states.items():
            accelerator.set_rng_state(state, index)


def devices(accelerator: Any) -> range:
    """The indices of the devices."""
    return range(accelerator.device_count())


def each_device(accelerator: Any) -> Iterator[int]:
    """Every index, made the current device in turn."""
    for index in devices(accelerator):
        accelerator.set_device(index)
        yield index


def ignores_indices(accelerator: Any) -> bool:
    """Whether set_device() accepts any number and changes nothing, as on the host."""
    former = accelerator.current_device()
    if accelerator.device_name(former) != accelerator.device_name():
        return False  # device strings carry an index, so it must count
    try:
        accelerator.set_device(accelerator.device_count())
        return bool(accelerator.current_device() == former)
    except Exception:
        return False
    finally:
        accelerator.set_device(former)


def tensor(accelerator: Any, data: Any) -> torch.Tensor:
    """A tensor on the current device."""
    return torch.tensor(data, device=accelerator.device_name())


def is_int(value: object) -> bool:
    """Whether it is an int, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
