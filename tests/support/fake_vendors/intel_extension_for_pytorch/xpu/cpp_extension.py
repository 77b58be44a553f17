"""The build command of IPEX, torch's own under its name."""

from torch.utils.cpp_extension import BuildExtension


class DpcppBuildExtension(BuildExtension):
    """What IPEX compiles SYCL with."""
