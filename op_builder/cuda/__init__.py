"""The builders of CUDA devices."""

from op_builder.host.cpu_adam import CPUAdamBuilder

__all__ = ["CPUAdamBuilder"]
