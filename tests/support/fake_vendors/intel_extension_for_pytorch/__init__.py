"""What importing IPEX does, on a device made of host memory."""

from tests.support.fake_vendors import fake_device

__version__ = "2.8.10+xpu"

fake_device.install_xpu()
