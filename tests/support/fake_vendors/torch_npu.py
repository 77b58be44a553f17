"""What importing torch_npu does, on a device made of host memory.

Its own, after github.com/Ascend/pytorch, torch_npu/npu/__init__.py and memory.py: there is no capability unless a
variable names one, and a snapshot takes no argument.
"""

from tests.support.fake_vendors import fake_device

_npu = fake_device.install_vendor("npu", visible="ASCEND_RT_VISIBLE_DEVICES", backend="hccl", graph_class="NPUGraph")
_npu.get_device_capability = lambda device=None: None  # noqa: ARG005
_npu.memory_snapshot = list
