"""AMSGrad for ``FusedAdam(amsgrad=True)``."""

from op_builder.ops.declare import fused_optimizer
from op_builder.ops.optim.fused_op import FusedOp

OP = fused_optimizer("fused_amsgrad", "FusedAmsgradBuilder", "AMSGrad (Adam and AdamW)", FusedOp)
