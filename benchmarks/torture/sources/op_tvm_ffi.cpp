// The same function for loaders of TVM FFI.
#include <tvm/ffi/function.h>

#include "value.h"

int64_t value() { return VALUE; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(value, value);
