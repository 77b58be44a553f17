// The pin_memory op library: memory in whole pages that stays in memory.

#include "bindings/locked_pages.h"

ACCEL_OP_LIBRARY({nullptr, accel::LockedPages::define},
                 {"CompositeExplicitAutograd", accel::LockedPages::implement})
