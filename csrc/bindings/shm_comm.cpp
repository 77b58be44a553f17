// The shm_comm op library: groups by number, shared memory by descriptor and address. The Python side brings the ranks
// together and makes errors of failures. torch's dispatcher lets go of Python's lock while an op runs.

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python_call.h"
#include "bindings/shm_groups.h"
#include "bindings/tensor_checks.h"
#include "common/mutex.h"
#include "torch_c/boxed.h"
#include "torch_c/library.h"
#include "torch_c/ops.h"

namespace {

namespace comm = accel::comm;
using accel::in_words;
using accel::ScalarType;
using accel::Tensor;

// Symmetric memory by the address of this rank's part, as long as a tensor lies on it.
struct SymmetricMemories {
  accel::Mutex mutex;
  std::map<std::int64_t, std::shared_ptr<const comm::Symmetric>> by_address;
};
SymmetricMemories& memories() {
  static auto* const all = new SymmetricMemories;
  return *all;
}

accel::ShmGroups& groups() { return accel::shm_groups(); }

accel::Python python;
void* raised[3];  // the exception of a signal's handler that ended a wait, until the Python side raises it

bool is_interrupted_by_python() {
  if (python.check_signals == nullptr) {
    return false;
  }
  const int state = python.ensure();
  const bool has_raised = python.check_signals() != 0;
  if (has_raised) {
    python.fetch(&raised[0], &raised[1], &raised[2]);
  }
  python.release(state);
  return has_raised;
}

void know_python(const std::vector<std::int64_t>& addresses) {
  if (addresses.size() == accel::Python::kCount) {
    std::memcpy(&python, addresses.data(), sizeof(python));
  }
}

// Type, value and traceback of the exception that ended a wait; zeros where there is none. They are the caller's then.
std::vector<std::int64_t> take_raised() {
  std::vector<std::int64_t> taken;
  for (void*& part : raised) {
    taken.push_back(reinterpret_cast<std::int64_t>(part));
    part = nullptr;
  }
  return taken;
}

// Groups ---------------------------------------------------------------------------------------------------------------

// [descriptor, 0], or [-1, errno].
std::vector<std::int64_t> create_segment(std::int64_t size_bytes) {
  int error = 0;
  const int descriptor = comm::create_segment(size_bytes, error);
  return {descriptor, error};
}

// The group's number, or -errno. `numbers`: rank, size, timeout and spinning in ns, bytes of a slot and up to which all
// read all, the instruction set; then the ranks' descriptors, which become the group's, and whether each is a thread of
// this process.
std::int64_t open_group(const std::vector<std::int64_t>& numbers) {
  const std::int64_t* const given = numbers.data();
  const comm::GroupSettings settings{static_cast<int>(given[0]),
                                     {given[2], given[3]},
                                     {given[4], given[5]},
                                     static_cast<accel::cpu::Isa>(given[6]),
                                     is_interrupted_by_python};
  const std::int64_t* const descriptors = given + 7;
  const std::int64_t* const is_here = descriptors + given[1];
  int error = 0;
  auto group = std::make_shared<comm::Group>(settings, std::vector<int>(descriptors, is_here),
                                             std::vector<bool>(is_here, is_here + given[1]), error);
  return error != 0 ? -error : groups().add(std::move(group));
}

void leave(std::int64_t group) { groups().find(group)->leave(); }
void forget(std::int64_t group) { groups().remove(group); }

// [address of this rank's part, 0], or [0, errno]. `numbers`: group, bytes, the memory's id on
// all ranks, and the descriptors, which stay the caller's.
std::vector<std::int64_t> attach(const std::vector<std::int64_t>& numbers) {
  const std::vector<int> descriptors(numbers.begin() + 3, numbers.end());
  int error = 0;
  const auto memory = groups().find(numbers[0])->add_symmetric(static_cast<std::uint64_t>(numbers[2]), descriptors,
                                                               numbers[1], error);
  if (memory == nullptr) {
    return {0, error};
  }
  const auto address = reinterpret_cast<std::int64_t>(memory->base(memory->rank));
  const accel::Lock lock(memories().mutex);
  memories().by_address.emplace(address, memory);
  return {address, 0};
}

// The last tensor on that address is gone. The group may be gone, too.
void release(std::int64_t group, std::int64_t address) {
  std::shared_ptr<const comm::Symmetric> memory;  // unmapped after the lock, and after the group has let it go
  {
    const accel::Lock lock(memories().mutex);
    const auto found = memories().by_address.find(address);
    if (found != memories().by_address.end()) {
      memory = std::move(found->second);
      memories().by_address.erase(found);
    }
  }
  try {
    groups().find(group)->remove_symmetric(reinterpret_cast<const void*>(address));
  } catch (const std::invalid_argument&) {
  }
}

// Why a collective of a group failed: kind, rank, for whom that rank gave up, ms waited.
std::vector<std::int64_t> failure(std::int64_t group) {
  const comm::Failure failure = groups().find(group)->last_failure();
  return {static_cast<std::int64_t>(failure.kind), failure.rank, failure.culprit, failure.waited_ns / 1'000'000};
}

// Collectives ----------------------------------------------------------------------------------------------------------

// What went wrong last in a group.
std::string explain(std::int64_t number) {
  const auto group = groups().find(number);
  return in_words(*group, group->last_failure());
}

template <class Collective>
void run(std::int64_t number, const Collective& collective) {
  const auto group = groups().find(number);
  const comm::Failure failure = group->run(collective);
  if (failure.kind != comm::Failure::Kind::none) {
    throw std::runtime_error("shm_comm: " + in_words(*group, failure));
  }
}

constexpr accel::Argument kTensor{"the tensor", accel::Argument::kNoList};
constexpr accel::Argument kOutput{"the output", accel::Argument::kNoList};
constexpr accel::Argument kInput{"the input", accel::Argument::kNoList};

struct ReducedTensor : accel::HostMemory {
  comm::Element element;
};

ReducedTensor reduced_tensor(const Tensor& tensor, const accel::Argument& argument) {
  comm::Element element = comm::Element::float32;
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      break;
    case ScalarType::BFloat16:
      element = comm::Element::bfloat16;
      break;
    case ScalarType::Half:
      element = comm::Element::float16;
      break;
    case ScalarType::Int:
      element = comm::Element::int32;
      break;
    default:
      accel::host_memory(tensor, argument, 0);
      accel::refuse(argument.text() + " is of type " + tensor.type_name() +
                        "; float32, bfloat16, float16 or int32 is needed.",
                    "Convert it, for example x.float().");
  }
  return {accel::host_memory(tensor, argument, comm::size_bytes(element)), element};
}

accel::HostMemory bytes_of(const Tensor& tensor, const accel::Argument& argument) {
  return accel::host_memory(tensor, argument, static_cast<std::int64_t>(tensor.element_size()));
}

comm::Reduction reduction_of(std::int64_t number, comm::Element element) {
  const auto reduction = static_cast<comm::Reduction>(number);
  if (reduction == comm::Reduction::avg && element == comm::Element::int32) {
    accel::refuse("There is no mean of int32 tensors.", "Sum them and divide, or convert them, for example x.float().");
  }
  return reduction;
}

void require_apart(const accel::HostMemory& output, const accel::HostMemory& input, bool may_overlap) {
  if (!may_overlap && accel::overlap(output, input)) {
    accel::refuse("The output and the input overlap.", "Pass the rank's own part of the larger one, or x.clone().");
  }
}

void all_reduce_in_place(Tensor tensor, std::int64_t group, std::int64_t reduction) {
  const ReducedTensor memory = reduced_tensor(tensor, kTensor);
  const comm::Collectives::Numbers numbers{memory.numel, memory.element, reduction_of(reduction, memory.element)};
  run(group, [&](comm::Collectives& all) { return all.all_reduce(memory.data, memory.data, numbers); });
}

Tensor all_reduce(Tensor tensor, std::int64_t group, std::int64_t reduction) {
  const ReducedTensor memory = reduced_tensor(tensor, kTensor);
  const comm::Collectives::Numbers numbers{memory.numel, memory.element, reduction_of(reduction, memory.element)};
  Tensor result = accel::empty_like(tensor);
  void* const out = result.data_ptr();
  run(group, [&](comm::Collectives& all) { return all.all_reduce(memory.data, out, numbers); });
  return result;
}

void reduce_scatter(Tensor output, Tensor input, std::int64_t group, std::int64_t reduction) {
  const ReducedTensor out = reduced_tensor(output, kOutput);
  const ReducedTensor in = reduced_tensor(input, kInput);
  const auto found = groups().find(group);
  if (out.element != in.element || in.numel != out.numel * found->size()) {
    accel::refuse("The input has " + std::to_string(in.numel) + " elements of " + input.type_name() +
                      ", the output " + std::to_string(out.numel) + " of " + output.type_name() + ", for " +
                      std::to_string(found->size()) + " ranks.",
                  "Pass an input of the output's type with as many times its elements as there are ranks.");
  }
  require_apart(out, in, out.data == in.data + found->rank() * out.bytes);
  const comm::Collectives::Numbers numbers{out.numel, out.element, reduction_of(reduction, out.element)};
  run(group, [&](comm::Collectives& all) { return all.reduce_scatter(in.data, out.data, numbers); });
}

void all_gather(Tensor output, Tensor input, std::int64_t group) {
  const accel::HostMemory out = bytes_of(output, kOutput);
  const accel::HostMemory in = bytes_of(input, kInput);
  const auto found = groups().find(group);
  if (output.scalar_type() != input.scalar_type() || out.numel != in.numel * found->size()) {
    accel::refuse("The output has " + std::to_string(out.numel) + " elements of " + output.type_name() +
                      ", the input " + std::to_string(in.numel) + " of " + input.type_name() + ", for " +
                      std::to_string(found->size()) + " ranks.",
                  "Pass an output of the input's type with as many times its elements as there are ranks.");
  }
  require_apart(out, in, in.data == out.data + found->rank() * in.bytes);
  run(group, [&](comm::Collectives& all) { return all.all_gather(in.data, out.data, in.bytes); });
}

void broadcast(Tensor tensor, std::int64_t group, std::int64_t source) {
  const accel::HostMemory memory = bytes_of(tensor, kTensor);
  const auto found = groups().find(group);
  if (source < 0 || source >= found->size()) {
    accel::refuse("There is no rank " + std::to_string(source) + " in a group of " + std::to_string(found->size()) + ".",
                  "Pass a rank of the group as src, counted from 0.");
  }
  run(group, [&](comm::Collectives& all) { return all.broadcast(memory.data, memory.bytes, static_cast<int>(source)); });
}

void barrier(std::int64_t group) {
  run(group, [](comm::Collectives& all) { return all.barrier(); });
}

// all_reduce(tensor, reduction) or all_reduce(input, output, reduction) of the group whose number `self` is, called by
// Python itself. Returns the last tensor; None where the torch op is to be called instead; False after a failure, of
// which explain() and failure() tell.
void* all_reduce_by_python(void* self, void* const* arguments, std::ptrdiff_t count) {
  accel::DLTensor input{};
  accel::DLTensor output{};
  void* const target = count == 2 || count == 3 ? arguments[count - 2] : nullptr;
  void* result = python.none;
  if (target != nullptr && accel::plain_host_view(python, arguments[0], input) &&
      (count == 2 || accel::plain_host_view(python, target, output))) {
    const auto type = static_cast<std::uint32_t>(input.type_code) << 8 | input.type_bits;
    comm::Collectives::Numbers numbers{element_count(input), comm::Element::float32,
                                       static_cast<comm::Reduction>(python.as_integer(arguments[count - 1]))};
    bool is_known = true;
    if (type == (accel::kDLBfloat << 8 | 16)) {
      numbers.element = comm::Element::bfloat16;
    } else if (type == (accel::kDLFloat << 8 | 16)) {
      numbers.element = comm::Element::float16;
    } else if (type == (accel::kDLInt << 8 | 32)) {
      numbers.element = comm::Element::int32;
      is_known = numbers.reduction != comm::Reduction::avg;
    } else {
      is_known = type == (accel::kDLFloat << 8 | 32);
    }
    const std::int64_t number = python.as_integer(self);
    void* const data = count == 2 ? input.data : output.data;
    if (is_known) {
      void* const thread = python.save_thread();
      try {
        const comm::Failure failure = groups().find(number)->run(
            [&](comm::Collectives& all) { return all.all_reduce(input.data, data, numbers); });
        result = failure.kind == comm::Failure::Kind::none ? target : python.false_;
      } catch (const std::exception&) {  // the op says it better
      }
      python.restore_thread(thread);
    }
  }
  python.retain(result);
  return result;
}

// The address of a PyMethodDef of all_reduce_by_python(), or 0 where tensors cannot be looked at that way.
std::int64_t python_method() {
  static accel::PythonMethod method{"all_reduce", all_reduce_by_python};
  const auto* const exchange = static_cast<const accel::DLExchange*>(python.dlpack);
  const bool is_usable = exchange != nullptr && exchange->major == 1 && exchange->view != nullptr;
  return is_usable ? reinterpret_cast<std::int64_t>(&method) : 0;
}

// What is no collective, by number and with numbers alone, so that one op is enough for all.
// op_builder/ops/comm/shared_memory_native.py has the names; it passes as many numbers as are used.
std::vector<std::int64_t> control(std::int64_t what, std::vector<std::int64_t> numbers) {
  switch (what) {
    case 0:
      know_python(numbers);
      return {};
    case 1:
      return {python_method()};
    case 2:
      return take_raised();
    case 3:
      return create_segment(numbers.at(0));
    case 4:
      return {comm::SlotLayout{numbers.at(0)}.segment_bytes()};
    case 5:
      return {open_group(numbers)};
    case 6:
      leave(numbers.at(0));
      return {};
    case 7:
      forget(numbers.at(0));
      return {};
    case 8:
      return attach(numbers);
    case 9:
      release(numbers.at(0), numbers.at(1));
      return {};
    case 10:
      return failure(numbers.at(0));
    default:
      return {};
  }
}

// Without memory: what the results look like.
Tensor all_reduce_meta(Tensor tensor, std::int64_t, std::int64_t) { return accel::empty_like(tensor); }
void all_reduce_in_place_meta(Tensor, std::int64_t, std::int64_t) {}
void reduce_scatter_meta(Tensor, Tensor, std::int64_t, std::int64_t) {}
void all_gather_meta(Tensor, Tensor, std::int64_t) {}
void broadcast_meta(Tensor, std::int64_t, std::int64_t) {}

void define(accel::Library& library) {
  library.def("control(int what, int[] numbers) -> int[]");
  library.def("explain(int group) -> str");
  library.def("barrier(int group) -> ()");
  library.def("all_reduce(Tensor x, int group, int reduction) -> Tensor");
  library.def("all_reduce_(Tensor(a!) x, int group, int reduction) -> ()");
  library.def("reduce_scatter(Tensor(a!) output, Tensor input, int group, int reduction) -> ()");
  library.def("all_gather(Tensor(a!) output, Tensor input, int group) -> ()");
  library.def("broadcast_(Tensor(a!) x, int group, int source) -> ()");
}

void implement(accel::Library& library) {
  library.impl("control", ACCEL_BOX(&control));
  library.impl("explain", ACCEL_BOX(&explain));
  library.impl("barrier", ACCEL_BOX(&barrier));
}

void implement_on_cpu(accel::Library& library) {
  library.impl("all_reduce", ACCEL_BOX(&all_reduce));
  library.impl("all_reduce_", ACCEL_BOX(&all_reduce_in_place));
  library.impl("reduce_scatter", ACCEL_BOX(&reduce_scatter));
  library.impl("all_gather", ACCEL_BOX(&all_gather));
  library.impl("broadcast_", ACCEL_BOX(&broadcast));
}

void implement_without_memory(accel::Library& library) {
  library.impl("all_reduce", ACCEL_BOX(&all_reduce_meta));
  library.impl("all_reduce_", ACCEL_BOX(&all_reduce_in_place_meta));
  library.impl("reduce_scatter", ACCEL_BOX(&reduce_scatter_meta));
  library.impl("all_gather", ACCEL_BOX(&all_gather_meta));
  library.impl("broadcast_", ACCEL_BOX(&broadcast_meta));
}

}  // namespace

ACCEL_OP_LIBRARY({nullptr, define}, {"CompositeExplicitAutograd", implement}, {"CPU", implement_on_cpu},
                 {"Meta", implement_without_memory})
