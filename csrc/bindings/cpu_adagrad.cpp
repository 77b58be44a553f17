#include "bindings/host_optimizer.h"
#include "kernels/formulas/adagrad.h"

ACCEL_HOST_OPTIMIZER(accel::Adagrad)
