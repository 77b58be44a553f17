#define ACCEL_OPTIMIZER Sgd
#define ACCEL_FORMULA "kernels/formulas/sgd.h"
#include "kernels/cpu/elementwise.h"
