#include "bindings/fused_optimizer.h"
#include "kernels/formulas/lion.h"

ACCEL_FUSED_OPTIMIZER(accel::Lion)
