#include "bindings/fused_optimizer.h"
#include "kernels/formulas/amsgrad.h"

ACCEL_FUSED_OPTIMIZER(accel::Amsgrad)
