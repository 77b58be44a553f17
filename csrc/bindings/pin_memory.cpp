// The pin_memory op library: page-locked memory.

#include "bindings/locked_pages.h"

ACCEL_OP_LIBRARY({nullptr, accel::locked_pages::define}, {"CompositeExplicitAutograd", accel::locked_pages::implement})
