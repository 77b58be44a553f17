// The block_quantize op library: symmetric quantisation by blocks to eight or four bits, with SYCL kernels.

#include <cstdint>
#include <string>

#include "bindings/device_tensors.h"
#include "bindings/groups.h"
#include "host/launch.h"
#include "host/tensor_stream.h"
#include "torch_c/op_table.h"

namespace {

using accel::Argument;
using accel::DevicePlace;
using accel::FloatMemory;
using accel::refuse;
using accel::ScalarType;
using accel::Tensor;
using accel::xpu::Kernel;

// By element type (float32, bfloat16, float16), then bits (8, 4).
#define ACCEL_QUANTIZERS(kernel)                                   \
  {ACCEL_SUB_GROUP_KERNEL(accel::xpu::kernel<float, 8>),           \
   ACCEL_SUB_GROUP_KERNEL(accel::xpu::kernel<float, 4>),           \
   ACCEL_SUB_GROUP_KERNEL(accel::xpu::kernel<accel::BFloat16, 8>), \
   ACCEL_SUB_GROUP_KERNEL(accel::xpu::kernel<accel::BFloat16, 4>), \
   ACCEL_SUB_GROUP_KERNEL(accel::xpu::kernel<accel::Float16, 8>),  \
   ACCEL_SUB_GROUP_KERNEL(accel::xpu::kernel<accel::Float16, 4>)}
const Kernel kQuantize[] = ACCEL_QUANTIZERS(block_quantize);
const Kernel kDequantize[] = ACCEL_QUANTIZERS(block_dequantize);

// The least number of elements for which starting a sub-group pays.
constexpr std::int64_t kSubGroupElements = 4096;
// A block is added to a tensor's elements, whose number memory limits.
constexpr std::int64_t kLargestBlock = std::int64_t{1} << 62;

const Kernel& find(const Kernel* kernels, accel::DType dtype, std::int64_t bits) {
  if (bits != 8 && bits != 4) {
    refuse("bits is " + std::to_string(bits) + ".", "Pass 8 or 4.");
  }
  return kernels[static_cast<std::size_t>(dtype) * 2 + (bits == 4 ? 1 : 0)];
}

struct Shape {
  std::int64_t numel;
  std::int64_t block;
};

void* codes_of(const Tensor& tensor, const DevicePlace& place, const Shape& shape, std::int64_t bits) {
  const bool is_known = tensor.scalar_type() == (bits == 8 ? ScalarType::Char : ScalarType::Byte);
  const std::int64_t needed = bits == 8 ? shape.numel : (shape.numel + 1) / 2;
  if (!is_known || tensor.numel() != needed) {
    refuse("codes has " + std::to_string(tensor.numel()) + " elements of type " + tensor.type_name() + "; " +
               std::to_string(needed) + (bits == 8 ? " of int8" : " of uint8") + " are needed.",
           "Pass the codes as they were made.");
  }
  return accel::device_memory(tensor, {"codes", Argument::kNoList}, place, 1);
}

float* scales_of(const Tensor& tensor, const DevicePlace& place, const Shape& shape) {
  if (shape.block < 2 || shape.block > kLargestBlock || shape.block % 2 != 0) {
    refuse("block_size is " + std::to_string(shape.block) + ".", "Pass an even number, for example 256.");
  }
  const std::int64_t blocks = (shape.numel + shape.block - 1) / shape.block;
  if (tensor.scalar_type() != ScalarType::Float || tensor.numel() != blocks) {
    refuse("scales has " + std::to_string(tensor.numel()) + " elements of type " + tensor.type_name() + "; " +
               std::to_string(blocks) + " of float32 are needed.",
           "Pass the scales as they were made.");
  }
  return static_cast<float*>(accel::device_memory(tensor, {"scales", Argument::kNoList}, place, sizeof(float)));
}

// Both directions have the same arguments, but write different ones.
void run(const Kernel* kernels, const Tensor& x, const Tensor& codes, const Tensor& scales, std::int64_t block,
         std::int64_t bits) {
  const DevicePlace place = DevicePlace::of(x);
  const FloatMemory values = accel::float_memory(x, {"x", Argument::kNoList}, accel::require_device(place));
  const Kernel& kernel = find(kernels, values.dtype, bits);
  const Shape shape{values.numel, block};
  float* const scale_data = scales_of(scales, place, shape);
  void* const code_data = codes_of(codes, place, shape, bits);
  if (shape.numel == 0) {
    return;
  }
  accel::xpu::Stream stream = accel::xpu::stream_for(x);
  const std::int64_t blocks = (shape.numel + block - 1) / block;
  const std::int64_t blocks_per_sub_group = block < kSubGroupElements ? kSubGroupElements / block : 1;
  const std::size_t items = accel::xpu::group_items(stream.device());
  const std::int64_t per_group = blocks_per_sub_group * (static_cast<std::int64_t>(items) / accel::xpu::kSubGroup);
  const std::size_t groups = accel::xpu::group_count((blocks + per_group - 1) / per_group, items);
  accel::xpu::launch(stream, kernel, {groups, items}, values.data, code_data, scale_data, shape.numel, block,
                     blocks_per_sub_group);
  stream.finish();
}

void quantize(Tensor x, Tensor codes, Tensor scales, std::int64_t block, std::int64_t bits) {
  run(kQuantize, x, codes, scales, block, bits);
}

void dequantize(Tensor codes, Tensor scales, Tensor x, std::int64_t block, std::int64_t bits) {
  run(kDequantize, x, codes, scales, block, bits);
}

const accel::Ops ops = {
    {"quantize(Tensor x, Tensor(a!) codes, Tensor(b!) scales, int block, int bits) -> ()", ACCEL_BOX_TRACED(&quantize)},
    {"dequantize(Tensor codes, Tensor scales, Tensor(a!) x, int block, int bits) -> ()", ACCEL_BOX_TRACED(&dequantize)},
};

}  // namespace

ACCEL_OP_TABLE(ops, "CPU", "XPU")
