"""What importing habana_frameworks.torch.hpu does, on a device made of host memory: this module is the device's.

Signatures and what is missing after github.com/HabanaAI/gaudi-pytorch-bridge, python_packages/habana_frameworks/
torch/hpu: __init__.py, memory.py, random.py, streams.py, graphs.py.
"""

# ruff: noqa: ARG001 - the vendor's signatures

import sys
from types import SimpleNamespace

import torch
from torch._dynamo import register_backend

from tests.support.fake_vendors import fake_device

_whole = fake_device.install_vendor(
    "hpu", visible="HABANA_VISIBLE_MODULES", backend="hccl", graph_class="HPUGraph", most=1
)
_whole.init()
_absent = ("_lazy_call", "amp", "default_generators", "empty_cache", "memory_snapshot")
globals().update(
    {name: value for name, value in vars(_whole).items() if not name.startswith("__") and name not in _absent}
)
torch.hpu = sys.modules[__name__]

random = SimpleNamespace(default_generators=list(_whole.default_generators))


def synchronize():
    _whole.init()


def get_device_properties(device=None):
    return "(sramBaseAddress=0, dramSize=1073741824)"


def get_device_capability(device=None):
    return "1.19.0"


def graph(hpu_graph, stream=None, dry_run=False):
    return hpu_graph


def memory_stats(device=None):
    used = {"InUse": _whole.memory_allocated(device), "MaxInUse": _whole.max_memory_allocated(device)}
    return {"Limit": fake_device.TOTAL_BYTES, **used, "NumAllocs": 0, "NumFrees": 0}


def memory_reserved(device=None):
    return memory_stats(device)["Limit"]


max_memory_reserved = memory_reserved


def mem_get_info(device=None):
    stats = memory_stats(device)
    return stats["Limit"] - stats["InUse"], stats["Limit"]


@register_backend(name="hpu_backend")
def _hpu_backend(graph_module, example_inputs):
    return graph_module.forward
