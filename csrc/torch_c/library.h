// Registration of an op library under a namespace that the loader chooses.
//
// torch ends the process when two libraries register the same namespace, and two builds of one
// op may live in one process (a kernel was edited, a cache was switched). So a binding does not
// fix its namespace at compile time: it describes its parts once with ACCEL_OP_LIBRARY, and the
// loader calls the one exported function, accel_register_library, with a namespace that ends in
// the hash of this very build.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>

#include "torch_c/errors.h"
#include "torch_c/functions.h"

namespace accel {

// A boxed function and the ABI of its values. ACCEL_BOX(&function) of boxed.h makes one; with bindings/stable_library.h
// torch's TORCH_BOX(&function) converts to one.
struct Boxed {
  torch_c::BoxedFunction function;
  std::uint64_t abi;
};

// Schemas of a namespace, or the functions behind them for one dispatch key.
class Library {
 public:
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  // A null `dispatch_key` means a library of schemas.
  Library(const char* name_space, const char* dispatch_key) {
    if (dispatch_key == nullptr) {
      ACCEL_TORCH(aoti_torch_library_init_def, name_space, __FILE__, __LINE__, &handle_);
    } else {
      ACCEL_TORCH(aoti_torch_library_init_impl, name_space, dispatch_key, __FILE__, __LINE__, &handle_);
    }
  }

  Library& def(const char* schema) {
    ACCEL_TORCH(aoti_torch_library_def, handle_, schema);
    return *this;
  }
  Library& impl(const char* name, const Boxed& boxed) {
    ACCEL_TORCH(torch_library_impl, handle_, name, torch_c::passing_errors(boxed.function), boxed.abi);
    return *this;
  }
#if defined(ACCEL_BOXED_BY_TORCH)
  Library& impl(const char* name, torch_c::BoxedFunction function) {
    return impl(name, Boxed{function, ACCEL_BOXED_BY_TORCH});
  }
#endif

 private:
  TorchLibraryHandle handle_ = nullptr;
};

// One registration block. A null dispatch key defines schemas; any other key ("CPU", "CUDA",
// "Meta") implements them for that key.
struct LibraryPart {
  const char* dispatch_key;
  void (*fill)(Library&);
};

// Registers all parts under `name_space`. Returns 0, or 1 with the reason in `error`
// (cut to `error_size` bytes). The libraries are never destroyed: their ops must outlive
// static destruction in torch.
inline int register_library(const LibraryPart* parts, std::size_t count, const char* name_space, char* error,
                            std::size_t error_size) noexcept {
  try {
    for (std::size_t i = 0; i < count; ++i) {
      parts[i].fill(*new Library(name_space, parts[i].dispatch_key));
    }
    return 0;
  } catch (const std::exception& exception) {
    if (error_size > 0) {
      std::strncpy(error, exception.what(), error_size - 1);
      error[error_size - 1] = '\0';
    }
    return 1;
  }
}

}  // namespace accel

// At namespace scope of one binding file: ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", implement})
#define ACCEL_OP_LIBRARY(...)                                                                                       \
  extern "C" __attribute__((visibility("default"))) int accel_register_library(const char* name_space, char* error, \
                                                                               std::size_t error_size) {            \
    static const ::accel::LibraryPart parts[] = {__VA_ARGS__};                                                      \
    return ::accel::register_library(parts, sizeof(parts) / sizeof(parts[0]), name_space, error, error_size);       \
  }
