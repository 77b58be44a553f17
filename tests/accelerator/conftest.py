"""Fixtures over :mod:`simulated_machines`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from simulated_machines import Machine, PluginSite

from accelerator import real_accelerator, vendors
from op_builder import env
from op_builder.system.cgroups import HostFiles


@pytest.fixture(autouse=True)
def plain_environment() -> Iterator[None]:
    """No variable of the developer's machine decides a test."""
    unset = ("ACCEL_ACCELERATOR", "DS_ACCELERATOR", "LOCAL_SIZE", "LOCAL_RANK")
    unset += ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    with env.scope(**dict.fromkeys(unset, None)):
        yield


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a process that has not asked for its accelerator yet."""
    monkeypatch.setattr(real_accelerator, "_current", None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(vendors, "_failures", {})  # a machine on which no import has failed yet
    return Machine(monkeypatch)


@pytest.fixture
def plugin_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    before = set(sys.modules)
    yield PluginSite(tmp_path / "site", monkeypatch)
    for module in set(sys.modules) - before:
        if module.startswith("plugin_"):
            del sys.modules[module]


@pytest.fixture
def host_files(tmp_path: Path) -> Callable[[dict[str, str]], HostFiles]:
    """Write a made-up tree, ``sys/...`` and ``proc/...``, and return where it is."""

    def write(files: dict[str, str]) -> HostFiles:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return HostFiles(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")

    return write


@pytest.fixture
def fake_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 GiB, 48 of them available."""
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 << 30, available=48 << 30))
