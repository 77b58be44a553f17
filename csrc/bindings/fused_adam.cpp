#include "bindings/fused_optimizer.h"
#include "kernels/formulas/adam.h"

ACCEL_FUSED_OPTIMIZER(accel::Adam)
