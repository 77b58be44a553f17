"""What importing torch_mlu does, on a device made of host memory."""

import fake_device

fake_device.install_vendor("mlu", visible="MLU_VISIBLE_DEVICES", backend="cncl", graph_class="MLUGraph")
