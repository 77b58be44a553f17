#include "bindings/host_optimizer.h"
#include "kernels/formulas/amsgrad.h"

ACCEL_HOST_OPTIMIZER(accel::Amsgrad)
