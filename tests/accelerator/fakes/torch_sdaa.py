"""What importing torch_sdaa does, on a device made of host memory."""

import fake_device

fake_device.install_vendor("sdaa", visible="SDAA_VISIBLE_DEVICES", backend="tccl", graph_class="SDAAGraph")
