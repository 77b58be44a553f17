// A device made of host memory, under any name that torch knows a dispatch key for: an allocator that counts, a
// device guard, copies, a random kernel on generators of its own, page-locked memory by declaration, and torch's
// fallback to the CPU for all other operators. Tests of accelerators run real tensors on it.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

namespace {

constexpr int kMostDevices = 8;

c10::DeviceType device_type = c10::DeviceType::PrivateUse1;
c10::DispatchKey dispatch_key = c10::DispatchKey::PrivateUse1;
int device_count = 2;
thread_local int current_device = 0;
at::Generator generators[kMostDevices];

struct Counter {
  int64_t current = 0;
  int64_t peak = 0;
};
Counter counters[kMostDevices];

struct Block {
  void* memory;
  int64_t size_bytes;
  int device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  counters[block->device].current -= block->size_bytes;
  std::free(block->memory);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size_bytes) override {
    auto* block =
        new Block{std::malloc(std::max<size_t>(size_bytes, 1)), static_cast<int64_t>(size_bytes), current_device};
    auto& counter = counters[block->device];
    counter.current += block->size_bytes;
    counter.peak = std::max(counter.peak, counter.current);
    return {block->memory, block, &release, c10::Device(device_type, static_cast<c10::DeviceIndex>(block->device))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }
};
DeviceAllocator allocator;

std::set<const void*> pinned;
void unpin(void* memory) {
  pinned.erase(memory);
  std::free(memory);
}
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size_bytes) override {
    void* memory = std::malloc(std::max<size_t>(size_bytes, 1));
    pinned.insert(memory);
    return {memory, memory, &unpin, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }
};
PinnedAllocator pinned_allocator;

void set_current(int64_t device) {
  TORCH_CHECK(device >= 0 && device < device_count, "invalid device ordinal ", device, "; there are ", device_count);
  current_device = static_cast<int>(device);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto former = getDevice();
    setDevice(device);
    return former;
  }
  c10::Device getDevice() const override { return {device_type, static_cast<c10::DeviceIndex>(current_device)}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count); }
};
Guard guard_implementation;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current(device); }
  bool isPinnedPtr(const void* data) const override { return pinned.count(data) > 0; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
};
Hooks hooks;

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().type() != device_type) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
}

c10::Device chosen(std::optional<c10::Device> device) {
  if (device && device->has_index()) return *device;
  return guard_implementation.getDevice();
}

at::Tensor make_empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                      std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(dispatch_key), c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor make_empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                              std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(dispatch_key),
                                           c10::dtype_or_default(dtype));
}

at::Tensor& copy_into(at::Tensor& self, const at::Tensor& source, bool) {
  on_host(self).copy_(on_host(source));
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return target.copy_(self);
}

at::Tensor& fill_uniformly(at::Tensor& self, double from, double to, std::optional<at::Generator> generator) {
  on_host(self).uniform_(from, to, generator ? *generator : generators[self.device().index()]);
  return self;
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

// Makes the device of that name this one, once per process.
void install(const std::string& name, int64_t count) {
  device_type = c10::Device(name).type();
  dispatch_key = c10::TensorOptions(device_type).computeDispatchKey();
  device_count = static_cast<int>(count);
  c10::SetAllocator(device_type, &allocator);
  static c10::impl::DeviceGuardImplRegistrar guard(device_type, &guard_implementation);
  if (device_type == c10::DeviceType::PrivateUse1) at::RegisterPrivateUse1HooksInterface(&hooks);
  static torch::Library everything(torch::Library::IMPL, "_", dispatch_key, __FILE__, __LINE__);
  everything.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  static torch::Library kernels(torch::Library::IMPL, "aten", dispatch_key, __FILE__, __LINE__);
  kernels.impl("empty.memory_format", TORCH_FN(make_empty));
  kernels.impl("empty_strided", TORCH_FN(make_empty_strided));
  kernels.impl("copy_", TORCH_FN(copy_into));
  kernels.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  kernels.impl("uniform_", TORCH_FN(fill_uniformly));
  kernels.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  kernels.impl("view", TORCH_FN(at::native::view));
  kernels.impl("resize_", TORCH_FN(at::native::resize_));
  kernels.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
}

int64_t memory(int64_t device, bool peak) { return peak ? counters[device].peak : counters[device].current; }

void reset_peak(int64_t device) { counters[device].peak = counters[device].current; }

void set_generator(int64_t device, at::Generator generator) { generators[device] = std::move(generator); }

}  // namespace

TORCH_LIBRARY(accel_ops_fake_device, m) {
  m.def("install", &install);
  m.def("memory", &memory);
  m.def("reset_peak", &reset_peak);
  m.def("current_device", [] { return static_cast<int64_t>(current_device); });
  m.def("set_device", &set_current);
  m.def("set_generator", &set_generator);
}
