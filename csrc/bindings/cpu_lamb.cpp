#include "bindings/host_optimizer.h"
#include "kernels/formulas/lamb.h"

ACCEL_HOST_OPTIMIZER(accel::Lamb)
