"""What importing torch_mlu does, on a device made of host memory.

Its own, after github.com/Cambricon/torch_mlu, torch_mlu/mlu/__init__.py and memory.py: the device of a record must
be given, float8 support is reported, and a snapshot takes no argument.
"""

from tests.support.fake_vendors import fake_device

_mlu = fake_device.install_vendor("mlu", visible="MLU_VISIBLE_DEVICES", backend="cncl", graph_class="MLUGraph")
_record = _mlu.get_device_properties
_mlu.get_device_properties = lambda device: _record(device)
_mlu.is_fp8_supported = lambda including_emulation=True: True  # noqa: ARG005
_mlu.memory_snapshot = list
