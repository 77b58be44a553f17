"""The builders of the CPU."""

from op_builder.host.cpu_adam import CPUAdamBuilder

__all__ = ["CPUAdamBuilder"]
