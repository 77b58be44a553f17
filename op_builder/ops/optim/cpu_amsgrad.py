"""AMSGrad for ``CPUAdam(amsgrad=True)``."""

from op_builder.ops.declare import host_optimizer
from op_builder.ops.optim.host_op import HostOp

OP = host_optimizer("cpu_amsgrad", "CPUAmsgradBuilder", "AMSGrad (Adam and AdamW)", HostOp)
