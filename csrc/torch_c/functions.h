// The functions of LibTorch's stable C ABI that our bindings call, as torch 2.10 has them.
//
// Torch's own headers declare them too, but bring half a megabyte of C++ templates along, which takes a compiler longer
// than everything else in a binding. The names and types are torch's and repeat its declarations word for word, so that
// a file may include both; tests/integration/op_builder/engine/test_torch_c.py has the compiler compare them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)  // torch's symbols must stay visible
extern "C" {

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
struct TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque*;
struct DeviceGuardOpaque;
using DeviceGuardHandle = DeviceGuardOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;
struct StringOpaque;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;  // 0: done
// One argument or result of an op: a number in its lowest bytes, or a handle that belongs to who receives it.
using StableIValue = uint64_t;

// Tensors. Handles that are returned belong to the caller.
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle orig_handle, AtenTensorHandle* new_handle);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** ret_data_ptr);
AOTITorchError aoti_torch_get_storage_size(AtenTensorHandle tensor, int64_t* ret_size);
AOTITorchError aoti_torch_get_storage_offset(AtenTensorHandle tensor, int64_t* ret_storage_offset);
AOTITorchError aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* ret_numel);
AOTITorchError aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* ret_layout);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* ret_dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* ret_device_type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* ret_device_index);
AOTITorchError aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* ret_is_contiguous);
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr, const int64_t* strides_ptr,
                                        int32_t dtype, int32_t device_type, int32_t device_index,
                                        AtenTensorHandle* ret_new_tensor);

// The numbers of types, layouts and devices.
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_uint16();
int32_t aoti_torch_dtype_uint32();
int32_t aoti_torch_dtype_uint64();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_int16();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_dtype_bool();
int32_t aoti_torch_dtype_complex32();
int32_t aoti_torch_dtype_complex64();
int32_t aoti_torch_dtype_complex128();
int32_t aoti_torch_dtype_float8_e5m2();
int32_t aoti_torch_dtype_float8_e4m3fn();
int32_t aoti_torch_dtype_float8_e5m2fnuz();
int32_t aoti_torch_dtype_float8_e4m3fnuz();
size_t aoti_torch_dtype_element_size(int32_t dtype);
int32_t aoti_torch_layout_strided();
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();

// Lists and strings among the arguments of ops.
AOTITorchError torch_new_list_reserve_size(size_t size, StableListHandle* ret);
AOTITorchError torch_list_size(StableListHandle list_handle, size_t* size);
AOTITorchError torch_list_get_item(StableListHandle list_handle, size_t index, StableIValue* element);
AOTITorchError torch_list_push_back(StableListHandle list_handle, StableIValue element);
AOTITorchError torch_delete_list(StableListHandle list_handle);
AOTITorchError torch_new_string_handle(const char* data, size_t length, StringHandle* handle);
AOTITorchError torch_delete_string(StringHandle handle);
AOTITorchError torch_string_length(StringHandle handle, size_t* length);
AOTITorchError torch_string_c_str(StringHandle handle, const char** data);

// Ops: registering and calling them. The version is that of the ABI in which values are passed.
AOTITorchError aoti_torch_library_init_def(const char* ns, const char* file, uint32_t line,
                                           TorchLibraryHandle* ret_new_torch_lib);
AOTITorchError aoti_torch_library_init_impl(const char* ns, const char* k, const char* file, uint32_t line,
                                            TorchLibraryHandle* ret_new_torch_lib);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle self, const char* schema);
AOTITorchError torch_library_impl(TorchLibraryHandle self, const char* name,
                                  void (*fn)(StableIValue*, uint64_t, uint64_t), uint64_t extension_build_version);
AOTITorchError torch_call_dispatcher(const char* opName, const char* overloadName, StableIValue* stack,
                                     uint64_t extension_build_version);

AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain_size,
                                  void (*func)(int64_t begin, int64_t end, void* ctx), void* ctx);

AOTITorchError aoti_torch_create_device_guard(int32_t device_index, DeviceGuardHandle* ret_guard);
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard);

// Throws torch's exception with `msg` if `cond` is false.
void aoti_torch_check(bool cond, const char* func, const char* file, uint32_t line, const char* msg);

}  // extern "C"
#pragma GCC visibility pop

namespace accel::torch_c {

// torch 2.10.0, in which values are passed to and from ops here.
constexpr std::uint64_t kAbi = 0x020a000000000000;

// How torch's dispatcher calls an op: arguments and then results in one array, and how many there are of each.
using BoxedFunction = void (*)(StableIValue* stack, uint64_t arguments, uint64_t results);

[[noreturn]] inline void fail(const char* function) {
  throw std::runtime_error(std::string("torch's ") + function + "() failed.");
}

}  // namespace accel::torch_c

// Calls one of the functions above that report success.
#define ACCEL_TORCH(function, ...)       \
  do {                                   \
    if (function(__VA_ARGS__) != 0) {    \
      ::accel::torch_c::fail(#function); \
    }                                    \
  } while (false)

// The value that such a function writes through its last argument.
#define ACCEL_TORCH_GET(Type, function, ...)              \
  [&] {                                                   \
    Type accel_torch_got{};                               \
    ACCEL_TORCH(function, __VA_ARGS__, &accel_torch_got); \
    return accel_torch_got;                               \
  }()
