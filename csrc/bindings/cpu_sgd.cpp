#include "bindings/host_optimizer.h"
#include "kernels/formulas/sgd.h"

ACCEL_HOST_OPTIMIZER(accel::Sgd)
