// The ccl_comm op library: collectives of oneCCL on CPU tensors. A collective continues after its op has returned; the
// Python side keeps the tensor until it has finished. torch's dispatcher releases Python's lock while an op runs.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/tensor_checks.h"
#include "kernels/ccl/communicator.h"
#include "torch_c/op_table.h"

namespace {

namespace oneccl = accel::oneccl;
using accel::Tensor;

constexpr std::pair<accel::ScalarType, oneccl::DataType> kTypes[] = {
    {accel::ScalarType::Char, oneccl::DataType::int8},     {accel::ScalarType::Byte, oneccl::DataType::uint8},
    {accel::ScalarType::Int, oneccl::DataType::int32},     {accel::ScalarType::Long, oneccl::DataType::int64},
    {accel::ScalarType::Half, oneccl::DataType::float16},  {accel::ScalarType::BFloat16, oneccl::DataType::bfloat16},
    {accel::ScalarType::Float, oneccl::DataType::float32}, {accel::ScalarType::Double, oneccl::DataType::float64},
};

oneccl::DataType type_of(const Tensor& tensor) {
  for (const auto& [theirs, ours] : kTypes) {
    if (tensor.scalar_type() == theirs) {
      return ours;
    }
  }
  accel::refuse("tensor is of type " + tensor.type_name() +
                    "; oneCCL takes float32, bfloat16, float16, float64, int8, uint8, int32 and int64.",
                "Convert it, for example x.float(); a bool tensor can be sent as x.view(torch.uint8).");
}

oneccl::Buffer buffer_of(const Tensor& tensor) {
  const oneccl::DataType type = type_of(tensor);
  const auto element_bytes = static_cast<std::int64_t>(tensor.element_size());
  const accel::DenseMemory memory = accel::host_memory(tensor, {"tensor", accel::Argument::kNoList}, element_bytes);
  return {memory.data, static_cast<std::size_t>(memory.numel), type};
}

std::vector<std::int64_t> make_address() {
  std::vector<std::int64_t> bytes;
  for (const char byte : oneccl::make_address()) {
    bytes.push_back(static_cast<unsigned char>(byte));
  }
  return bytes;
}

// Returns the numbers of the communicator and of the collective in which the ranks meet.
std::vector<std::int64_t> connect(std::int64_t size, std::int64_t rank, std::vector<std::int64_t> address) {
  oneccl::Address bytes{};
  if (address.size() != bytes.size()) {
    accel::refuse("The address has " + std::to_string(address.size()) + " bytes.",
                  "Pass the " + std::to_string(bytes.size()) + " bytes that one rank created.");
  }
  std::transform(address.begin(), address.end(), bytes.begin(),
                 [](std::int64_t byte) { return static_cast<char>(byte); });
  const auto begun = oneccl::connect(static_cast<int>(size), static_cast<int>(rank), bytes);
  return {begun.communicator, begun.collective};
}

void disconnect(std::int64_t communicator) { oneccl::disconnect(communicator); }

std::int64_t all_reduce(Tensor tensor, std::int64_t communicator, std::int64_t reduction, std::string match_id) {
  return oneccl::start_all_reduce(communicator, buffer_of(tensor), static_cast<oneccl::Reduction>(reduction), match_id);
}

std::int64_t broadcast(Tensor tensor, std::int64_t communicator, std::int64_t source) {
  return oneccl::start_broadcast(communicator, buffer_of(tensor), static_cast<int>(source));
}

std::int64_t barrier(std::int64_t communicator) { return oneccl::start_barrier(communicator); }

bool wait(std::int64_t collective, std::int64_t timeout_ms) { return oneccl::wait(collective, timeout_ms); }

// A whole all-reduce in one op, which torch.compile can keep in its graph.
void inference_all_reduce(Tensor tensor, std::int64_t communicator, std::int64_t reduction, std::int64_t timeout_ms) {
  const std::int64_t collective = all_reduce(tensor, communicator, reduction, "");
  if (!oneccl::wait(collective, timeout_ms)) {
    tensor.release();  // never freed: oneCCL may still write to its memory
    throw std::runtime_error("oneCCL's all-reduce did not finish within " + std::to_string(timeout_ms) + " ms.");
  }
}

const accel::Ops ops = {
    {"make_address() -> int[]", ACCEL_BOX(&make_address)},
    {"connect(int size, int rank, int[] address) -> int[]", ACCEL_BOX(&connect)},
    {"disconnect(int communicator) -> ()", ACCEL_BOX(&disconnect)},
    {"all_reduce(Tensor(a!) tensor, int communicator, int reduction, str match_id) -> int", ACCEL_BOX(&all_reduce)},
    {"broadcast(Tensor(a!) tensor, int communicator, int source) -> int", ACCEL_BOX(&broadcast)},
    {"barrier(int communicator) -> int", ACCEL_BOX(&barrier)},
    {"wait(int collective, int timeout_ms) -> bool", ACCEL_BOX(&wait)},
    {"inference_all_reduce(Tensor(a!) tensor, int communicator, int reduction, int timeout_ms) -> ()",
     ACCEL_BOX_TRACED(&inference_all_reduce)},
};

}  // namespace

ACCEL_OP_TABLE(ops, "CPU")
