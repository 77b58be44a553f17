"""Simulated machines: fake vendor modules, fake results of torch, and kernel files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from accelerator import real_accelerator, vendors
from accelerator.detection import Selection
from op_builder import env
from op_builder.system.cgroups import HostFiles
from tests.support.foreign_package import install
from tests.support.kernel_files import write_files

VENDOR_PACKAGES = (
    *(f"torch_{name}" for name in ("npu", "sdaa", "mlu", "supa")),
    *(f"intel_extension_for_{name}" for name in ("deepspeed", "pytorch")),
    *("habana_frameworks", "habana_frameworks.torch", "habana_frameworks.torch.hpu"),
    *("oneccl_bindings_for_pytorch", "pynvml", "nvtx"),
)

WriteFiles = Callable[[dict[str, str]], HostFiles]


class Machine:
    """A machine with torch and without devices; the methods install devices as vendors do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        for package in VENDOR_PACKAGES:
            monkeypatch.setitem(sys.modules, package, None)  # importing it raises ModuleNotFoundError
        self.cuda(0)

    def package(self, name: str, **members: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(members)
        self._patch.setitem(sys.modules, name, module)
        return module

    def device_module(self, name: str, *, available: bool = True, **members: Any) -> ModuleType:
        module = ModuleType(f"torch.{name}")
        vars(module).update({"is_available": lambda: available, "device_count": lambda: int(available), **members})
        self._patch.setattr(torch, name, module, raising=False)
        return module

    def cuda(self, count: int) -> None:
        self._patch.setattr(torch.cuda, "device_count", lambda: count)

    def install(self, devices: str) -> None:
        """Install several devices, by the names of these methods."""
        for device in devices.split():
            self.cuda(2) if device == "cuda" else getattr(self, device)()

    def native_xpu(self, available: bool = True) -> None:
        self._patch.setattr(torch.version, "xpu", "20250301")
        self.device_module("xpu", available=available)

    def ipex(self, version: str = "2.8.10+xpu") -> None:
        self.native_xpu()
        self.package("intel_extension_for_pytorch", __version__=version)

    def xpu_external(self, available: bool = True) -> None:
        from accelerator.cpu_accelerator import CPU_Accelerator

        class XPU_Accelerator(CPU_Accelerator):
            probe = None  # it extends DeepSpeed's class, which has none

            def is_available(self) -> bool:
                return available

        self.package("intel_extension_for_deepspeed", XPU_Accelerator=XPU_Accelerator)

    def _vendor(self, name: str, available: bool = True) -> None:
        self.package(f"torch_{name}")
        self.device_module(name, available=available, **({"is_bf16_supported": lambda: True} if name == "mlu" else {}))

    npu = partialmethod(_vendor, "npu")
    sdaa = partialmethod(_vendor, "sdaa")
    mlu = partialmethod(_vendor, "mlu")
    supa = partialmethod(_vendor, "supa")

    def mps(self) -> None:
        self._patch.setattr(torch.mps, "current_allocated_memory", lambda: 0)
        self._patch.setattr(torch.mps, "device_count", lambda: 1)

    def hpu(self, available: bool = True) -> None:
        name = "habana_frameworks.torch.hpu"
        hpu = self.package(
            name, is_available=lambda: available, device_count=lambda: int(available), current_device=lambda: 0
        )
        self.package("habana_frameworks", torch=self.package("habana_frameworks.torch", hpu=hpu))

    def broken(self, package: str, error: BaseException, where: Path) -> None:
        """Install a package whose import raises ``error``."""
        self._patch.delitem(sys.modules, package, raising=False)
        self._patch.syspath_prepend(str(where))
        counted = f"open({str(where / 'imports')!r}, 'a').write('{package}\\n')"
        (where / f"{package}.py").write_text(f"{counted}\nraise {error!r}\n")


class Recording:
    """A proxy of an accelerator that records the members used."""

    def __init__(self, target: object) -> None:
        self._target = target
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self._target, name)


class PluginSite:
    """A directory on the path with installed plug-ins."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._patch = root, monkeypatch
        root.mkdir()
        monkeypatch.syspath_prepend(str(root))

    def install(self, name: str, module: str, source: str, entry: str | None = None) -> None:
        self._patch.delitem(sys.modules, module, raising=False)
        entry_points = f"[accelerator.backends]\n{name} = {entry or f'{module}:Plugin'}\n"
        install(self._root, module, {f"{module}.py": source}, entry_points)


PLUGIN_SOURCE = """
from accelerator.cpu_accelerator import CPU_Accelerator

class Plugin(CPU_Accelerator):
    {members}
"""


def numa_tree(nodes: dict[int, str], online: str | None = None) -> dict[str, str]:
    """The sysfs files of NUMA nodes: each node's core list, in the kernel's format."""
    base = "sys/devices/system/node"
    tree = {f"{base}/node{number}/cpulist": f"{cores}\n" for number, cores in nodes.items()}
    tree[f"{base}/online"] = f"{','.join(map(str, nodes)) if online is None else online}\n"
    return tree


def reasons(selection: Selection) -> dict[str, str]:
    """The reasons of the rejected candidates, by label."""
    return {entry.label: entry.reason for entry in selection.trace if entry.reason is not None}


def accepted_label(selection: Selection) -> str | None:
    return next((entry.label for entry in selection.trace if entry.reason is None), None)


# Fixtures, which conftest.py of a directory imports --------------------------------------


@pytest.fixture(autouse=True)
def plain_environment() -> Iterator[None]:
    """Unset the variables that select a device."""
    unset = ("ACCEL_ACCELERATOR", "DS_ACCELERATOR", "LOCAL_SIZE", "LOCAL_RANK")
    with env.scope(**dict.fromkeys((*unset, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))):
        yield


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a process before its first get_accelerator()."""
    monkeypatch.setattr(real_accelerator, "_current", {})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(vendors, "_failures", {})  # no import has failed yet
    return Machine(monkeypatch)


@pytest.fixture
def plugin_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    before = set(sys.modules)
    yield PluginSite(tmp_path / "site", monkeypatch)
    for module in set(sys.modules) - before:
        if module.startswith("plugin_"):
            del sys.modules[module]


@pytest.fixture
def host_files(tmp_path: Path) -> WriteFiles:
    """A function that writes files below ``sys/`` and ``proc/`` and returns their location."""

    return lambda files: write_files(tmp_path, files)


@pytest.fixture
def fake_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 GiB, 48 of them available."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 << 30, available=48 << 30))
