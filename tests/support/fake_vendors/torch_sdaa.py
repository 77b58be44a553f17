"""What importing torch_sdaa does, on a device made of host memory.

Its source is not public; users call torch.sdaa as torch.cuda, and that it has graphs cannot be seen.
"""

from tests.support.fake_vendors import fake_device

_sdaa = fake_device.install_vendor("sdaa", visible="SDAA_VISIBLE_DEVICES", backend="tccl", graph_class="SDAAGraph")
del _sdaa.graph, _sdaa.SDAAGraph
