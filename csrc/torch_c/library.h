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
#include <initializer_list>

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
#if defined(ACCEL_TORCH_BOX_PASSES_ERRORS)
    ACCEL_TORCH(torch_library_impl, handle_, name, function, ACCEL_BOXED_BY_TORCH);
    return *this;
#else
    return impl(name, Boxed{function, ACCEL_BOXED_BY_TORCH});
#endif
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

// Registers all parts under `name_space`.
inline void register_parts(std::initializer_list<LibraryPart> parts, const char* name_space) {
  for (const LibraryPart& part : parts) {
    part.fill(*new Library(name_space, part.dispatch_key));
  }
}

// Calls `registration`. Returns 0, or 1 with the reason in `error` (cut to `error_size` bytes). The libraries that it
// makes are never destroyed: their ops must outlive static destruction in torch.
template <class Registration>
int register_library(const Registration& registration, char* error, std::size_t error_size) noexcept {
  try {
    registration();
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

// The exported function of a binding; `registration` uses `name_space`.
#define ACCEL_REGISTER_LIBRARY(registration)                                                                        \
  extern "C" __attribute__((visibility("default"))) int accel_register_library(const char* name_space, char* error, \
                                                                               std::size_t error_size) {            \
    return ::accel::register_library([&] { registration; }, error, error_size);                                     \
  }

// At namespace scope of one binding file: ACCEL_OP_LIBRARY({nullptr, define}, {"CPU", implement})
#define ACCEL_OP_LIBRARY(...) ACCEL_REGISTER_LIBRARY(::accel::register_parts({__VA_ARGS__}, name_space))
