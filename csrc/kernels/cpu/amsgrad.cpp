#define ACCEL_OPTIMIZER Amsgrad
#define ACCEL_FORMULA "kernels/formulas/amsgrad.h"
#include "kernels/cpu/elementwise.h"
