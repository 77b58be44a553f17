#include "bindings/fused_optimizer.h"
#include "kernels/formulas/lamb.h"

ACCEL_FUSED_OPTIMIZER(accel::Lamb)
