// The rms_norm op library: RMSNorm of rows with a residual, with SYCL kernels.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "bindings/device_tensors.h"
#include "bindings/groups.h"
#include "host/launch.h"
#include "host/tensor_stream.h"
#include "torch_c/op_table.h"

namespace {

using accel::Argument;
using accel::DevicePlace;
using accel::DType;
using accel::FloatMemory;
using accel::refuse;
using accel::Tensor;
using accel::xpu::Kernel;

// By types of x and weight, then without and with a residual.
#define ACCEL_NORMS(...)                                             \
  {ACCEL_SUB_GROUP_KERNEL(accel::xpu::rms_norm<__VA_ARGS__, false>), \
   ACCEL_SUB_GROUP_KERNEL(accel::xpu::rms_norm<__VA_ARGS__, true>)}
const Kernel kFloat32[] = ACCEL_NORMS(float, float);
const Kernel kBFloat16[] = ACCEL_NORMS(accel::BFloat16, accel::BFloat16);
const Kernel kFloat16[] = ACCEL_NORMS(accel::Float16, accel::Float16);
const Kernel kBFloat16ByFloat32[] = ACCEL_NORMS(accel::BFloat16, float);
const Kernel kFloat16ByFloat32[] = ACCEL_NORMS(accel::Float16, float);

const Kernel* find(DType dtype, DType weight) {
  if (weight != DType::float32 && weight != dtype) {
    refuse(std::string("weight is of type ") + accel::dtype_name(weight) + ", x of type " + accel::dtype_name(dtype) +
               "; a weight is of float32 or of x's type.",
           "Convert it, for example weight.float().");
  }
  const bool by_float = weight == DType::float32;
  switch (dtype) {
    case DType::bfloat16:
      return by_float ? kBFloat16ByFloat32 : kBFloat16;
    case DType::float16:
      return by_float ? kFloat16ByFloat32 : kFloat16;
    case DType::float32:
      break;
  }
  return kFloat32;
}

FloatMemory like(const Tensor& tensor, const char* role, const DevicePlace& place, const FloatMemory& x) {
  const FloatMemory array = accel::float_memory(tensor, {role, Argument::kNoList}, accel::require_device(place));
  if (array.dtype != x.dtype || array.numel != x.numel) {
    refuse(std::string(role) + " has " + std::to_string(array.numel) + " elements of type " +
               accel::dtype_name(array.dtype) + "; " + std::to_string(x.numel) + " of " + accel::dtype_name(x.dtype) +
               " are needed.",
           "Pass a tensor like x.");
  }
  return array;
}

void require_apart(const FloatMemory& written, const char* role, const FloatMemory& other, const char* other_role) {
  if (accel::overlap(written, other)) {
    refuse(std::string(role) + " shares memory with " + other_role + ".", "Pass tensors with memory of their own.");
  }
}

void rms_norm(Tensor x, std::optional<Tensor> residual, Tensor weight, Tensor out, double eps) {
  const DevicePlace place = DevicePlace::of(x);
  const FloatMemory values = accel::float_memory(x, {"x", Argument::kNoList}, accel::require_device(place));
  const FloatMemory weights = accel::float_memory(weight, {"weight", Argument::kNoList}, accel::require_device(place));
  const Kernel& kernel = find(values.dtype, weights.dtype)[residual.has_value() ? 1 : 0];
  const FloatMemory to = like(out, "out", place, values);
  require_apart(to, "out", values, "x");
  require_apart(to, "out", weights, "weight");
  void* kept = nullptr;
  if (residual.has_value()) {
    const FloatMemory array = like(*residual, "residual", place, values);
    require_apart(array, "residual", values, "x");
    require_apart(array, "residual", weights, "weight");
    require_apart(array, "residual", to, "out");
    kept = array.data;
  }
  if (values.numel == 0) {
    return;
  }
  const std::int64_t columns = weights.numel;
  if (columns < 1 || values.numel % columns != 0) {
    refuse("x has " + std::to_string(values.numel) + " elements, which are no rows of weight's " +
               std::to_string(columns) + ".",
           "Pass a weight as long as x's last dimension.");
  }
  const std::int64_t rows = values.numel / columns;
  accel::xpu::Stream stream = accel::xpu::stream_for(x);
  const accel::xpu::Device& device = stream.device();
  // A group's items beyond a row's length would idle. Whole sub-groups.
  constexpr std::int64_t kWhole = accel::xpu::kSubGroup;
  const auto needed = static_cast<std::size_t>((std::min<std::int64_t>(columns, 4096) + kWhole - 1) / kWhole * kWhole);
  const std::size_t items = std::min(accel::xpu::group_items(device), needed);
  // Rows beyond these come by a group's next rounds.
  const std::int64_t groups = std::min<std::int64_t>(rows, std::int64_t{device.compute_units} * 64);
  accel::xpu::launch(stream, kernel, {static_cast<std::size_t>(groups), items}, values.data, kept, weights.data,
                     to.data, rows, columns, static_cast<float>(eps));
  stream.finish();
}

const accel::Ops ops = {
    {"rms_norm(Tensor x, Tensor(a!)? residual, Tensor weight, Tensor(b!) out, float eps) -> ()",
     ACCEL_BOX_TRACED(&rms_norm)},
};

}  // namespace

ACCEL_OP_TABLE(ops, "CPU", "XPU")
