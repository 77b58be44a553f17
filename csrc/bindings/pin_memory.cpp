// The pin_memory op library: page-locked memory.

#include "bindings/locked_pages.h"

ACCEL_OP_TABLE(accel::locked_pages::ops, "CPU")
