#define ACCEL_OPTIMIZER Adagrad
#define ACCEL_FORMULA "kernels/formulas/adagrad.h"
#include "kernels/cpu/elementwise.h"
