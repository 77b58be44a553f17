// A function that Python calls without torch's dispatcher, and without Python's headers: what it needs of CPython comes
// by address and is part of its stable ABI, and what it needs of tensors comes by DLPack's C exchange
// (https://dmlc.github.io/dlpack/latest/c_api.html), which torch's tensor type offers. So it is in the same binary for
// every CPython and every torch; where a torch does not offer it, nobody makes the function.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accel {

// Python's functions and objects, in the order in which the Python side gives their addresses.
struct Python {
  int (*ensure)();  // PyGILState_Ensure
  void (*release)(int);
  int (*check_signals)();
  void (*fetch)(void** type, void** value, void** traceback);
  void* (*save_thread)();
  void (*restore_thread)(void*);
  void* (*type_of)(void*);
  void (*retain)(void*);
  void (*drop)(void*);
  void* (*attribute)(void* object, void* name);
  void* (*call)(void* function, void* arguments);  // PyObject_CallObject
  std::int64_t (*as_integer)(void*);
  void (*clear_error)();
  void* none;
  void* false_;
  void* tensor_type;
  void* requires_grad;  // the attribute's name
  void* dispatch_modes;  // a function that counts those that are active
  void* dlpack;          // the exchange of the tensor type, or null

  static constexpr std::size_t kCount = 19;
};
static_assert(sizeof(Python) == Python::kCount * sizeof(void*));

// DLPack, version 1.
struct DLTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLExchange {
  std::uint32_t major;
  std::uint32_t minor;
  DLExchange* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*view)(void* object, DLTensor* out);
  void* current_stream;
};
constexpr std::int32_t kDLHost = 1;
enum : std::uint8_t { kDLInt = 0, kDLFloat = 2, kDLBfloat = 4 };

// CPython's PyMethodDef, for METH_FASTCALL.
struct PythonMethod {
  const char* name;
  void* (*function)(void* self, void* const* arguments, std::ptrdiff_t count);
  int flags = 0x0080;
  const char* documentation = nullptr;
};

// A view of `object` where it is a plain dense tensor of the host, outside of any mode that wants to see the ops called
// on it, and autograd has no interest in it. False for all else, which goes through torch's dispatcher.
inline bool plain_host_view(const Python& python, void* object, DLTensor& view) {
  void* const type = python.type_of(object);
  python.drop(type);  // the object keeps it
  if (type != python.tensor_type) {
    return false;
  }
  void* const modes = python.call(python.dispatch_modes, nullptr);
  const std::int64_t active = modes != nullptr ? python.as_integer(modes) : -1;
  if (modes != nullptr) {
    python.drop(modes);
  }
  void* const has_gradient = active == 0 ? python.attribute(object, python.requires_grad) : nullptr;
  if (has_gradient != nullptr) {
    python.drop(has_gradient);  // True and False are for ever
  }
  if (has_gradient != python.false_ ||
      static_cast<const DLExchange*>(python.dlpack)->view(object, &view) != 0) {
    python.clear_error();
    return false;
  }
  if (view.device_type != kDLHost || view.type_lanes != 1 || view.byte_offset != 0) {
    return false;
  }
  std::int64_t expected = 1;
  for (std::int32_t dimension = view.ndim; dimension-- > 0;) {
    if (view.shape[dimension] != 1 && view.strides[dimension] != expected) {
      return false;
    }
    expected *= view.shape[dimension];
  }
  return view.data != nullptr && expected > 0;
}

inline std::int64_t element_count(const DLTensor& view) {
  std::int64_t count = 1;
  for (std::int32_t dimension = 0; dimension < view.ndim; ++dimension) {
    count *= view.shape[dimension];
  }
  return count;
}

}  // namespace accel
