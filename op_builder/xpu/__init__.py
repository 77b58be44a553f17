"""The builders of Intel XPU devices."""

from op_builder.host.cpu_adam import CPUAdamBuilder

__all__ = ["CPUAdamBuilder"]
