// The packbits op library: bytes to bits and back, with SYCL kernels.

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
using accel::refuse;
using accel::Tensor;

// By bit order: little, big.
const accel::xpu::Kernel kPack[] = {ACCEL_SYCL_KERNEL(accel::xpu::pack_bits<false>),
                                    ACCEL_SYCL_KERNEL(accel::xpu::pack_bits<true>)};
const accel::xpu::Kernel kUnpack[] = {ACCEL_SYCL_KERNEL(accel::xpu::unpack_bits<false>),
                                      ACCEL_SYCL_KERNEL(accel::xpu::unpack_bits<true>)};

// Packed bytes that a group works on at most.
constexpr std::int64_t kPieceBytes = 8192;

void* bytes_of(const Tensor& tensor, const char* role, const DevicePlace& place) {
  using accel::ScalarType;
  if (tensor.scalar_type() != ScalarType::Byte && tensor.scalar_type() != ScalarType::Bool) {
    refuse(std::string(role) + " is of type " + tensor.type_name() + "; uint8 or bool is needed.",
           "Convert it, for example x != 0.");
  }
  return accel::device_memory(tensor, {role, Argument::kNoList}, place, 1);
}

// `x` in rows of `columns` elements each. Both directions have the same arguments, but write different ones.
void run(const accel::xpu::Kernel& kernel, const Tensor& x, const Tensor& packed, std::int64_t columns) {
  const DevicePlace place = DevicePlace::of(x);
  void* const elements = bytes_of(x, "x", place);
  void* const bits = bytes_of(packed, "packed", place);
  const std::int64_t numel = x.numel();
  if (columns < 1 || numel % columns != 0) {
    refuse("Rows of " + std::to_string(columns) + " elements do not divide " + std::to_string(numel) + ".",
           "Pass the length of the last dimension.");
  }
  std::int64_t rows = numel / columns;
  std::int64_t row_bytes = (columns + 7) / 8;
  if (packed.numel() != rows * row_bytes) {
    refuse("packed has " + std::to_string(packed.numel()) + " bytes; " + std::to_string(rows * row_bytes) +
               " are needed for " + std::to_string(rows) + " rows of " + std::to_string(columns) + ".",
           "Pass a tensor of that length.");
  }
  if (numel == 0) {
    return;
  }
  if (columns % 8 == 0) {  // then there are no gaps between rows
    columns = numel;
    row_bytes = columns / 8;
    rows = 1;
  }
  const std::int64_t packed_bytes = rows * row_bytes;
  accel::xpu::Stream stream = accel::xpu::stream_for(x);
  const std::size_t items = accel::xpu::group_items(stream.device());
  const std::size_t groups = accel::xpu::group_count((packed_bytes + kPieceBytes - 1) / kPieceBytes, items);
  accel::xpu::launch(stream, kernel, {groups, items}, elements, bits, columns, row_bytes, packed_bytes, kPieceBytes);
  stream.finish();
}

void pack(Tensor x, Tensor packed, std::int64_t columns, bool big) { run(kPack[big ? 1 : 0], x, packed, columns); }

void unpack(Tensor packed, Tensor x, std::int64_t columns, bool big) { run(kUnpack[big ? 1 : 0], x, packed, columns); }

const accel::Ops ops = {
    {"pack(Tensor x, Tensor(a!) packed, int columns, bool big) -> ()", ACCEL_BOX_TRACED(&pack)},
    {"unpack(Tensor packed, Tensor(a!) x, int columns, bool big) -> ()", ACCEL_BOX_TRACED(&unpack)},
};

}  // namespace

ACCEL_OP_TABLE(ops, "CPU", "XPU")
