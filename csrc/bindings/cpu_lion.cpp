#include "bindings/host_optimizer.h"
#include "kernels/formulas/lion.h"

ACCEL_HOST_OPTIMIZER(accel::Lion)
