// For ops on libc++: torch's header, but no exception leaves the functions of TORCH_BOX (torch_c/errors.h).
#pragma once

#include_next <torch/csrc/stable/library.h>

#include "torch_c/errors.h"

namespace accel::torch_c {

template <BoxedFunction function>
void boxed_by_torch(StableIValue* stack, uint64_t arguments, uint64_t results) {
  call_for_torch(function, stack, arguments, results);
}

}  // namespace accel::torch_c

#define ACCEL_TORCH_BOX_PASSES_ERRORS
#undef TORCH_BOX
#define TORCH_BOX(func)                                               \
  (&::accel::torch_c::boxed_by_torch<&::torch::stable::detail::boxer< \
       std::remove_pointer_t<std::remove_reference_t<decltype(func)>>, (func)>::boxed_fn>)
