"""What importing IPEX does, on a device made of host memory."""

import sys
from types import SimpleNamespace

from torch.utils.cpp_extension import BuildExtension

from tests.support.fake_vendors import fake_device

__version__ = "2.8.10+xpu"

sys.modules[f"{__name__}.xpu.cpp_extension"] = SimpleNamespace(DpcppBuildExtension=BuildExtension)
fake_device.install_xpu()
