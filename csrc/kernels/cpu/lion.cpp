#define ACCEL_OPTIMIZER Lion
#define ACCEL_FORMULA "kernels/formulas/lion.h"
#include "kernels/cpu/elementwise.h"
