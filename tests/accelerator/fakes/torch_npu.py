"""What importing torch_npu does, on a device made of host memory."""

import fake_device

fake_device.install_vendor("npu", visible="ASCEND_RT_VISIBLE_DEVICES", backend="hccl", graph_class="NPUGraph")
