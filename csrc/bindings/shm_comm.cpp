// The shm_comm op library: groups by number, shared memory by descriptor. The Python side connects the ranks and turns
// failures into its errors. torch's dispatcher releases Python's lock while an op runs.

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python_signals.h"
#include "bindings/tensor_checks.h"
#include "common/registry.h"
#include "kernels/comm/group.h"
#include "torch_c/op_table.h"
#include "torch_c/ops.h"

namespace {

namespace comm = accel::comm;
using accel::ScalarType;
using accel::Tensor;

constexpr comm::Tuning kTuning{512 << 10, 4 << 10};

// Counts forks: a child inherits its parent's groups, but is not a rank of them.
std::atomic<std::int64_t>& forks() {
  static std::atomic<std::int64_t> count{0};
  return count;
}
[[maybe_unused]] const int kForkIsWatched = pthread_atfork(nullptr, nullptr, [] { ++forks(); });

struct OpenGroup : comm::Group {
  using Group::Group;
  const std::int64_t forked = forks();
};
using Groups = accel::Registry<OpenGroup>;

std::shared_ptr<OpenGroup> find(std::int64_t number) {
  auto group = Groups::instance().find(number);
  if (group == nullptr) {
    accel::refuse("Group " + std::to_string(number) + " is closed.", "Make a new one with new_group().");
  }
  if (group->forked != forks()) {
    accel::refuse("This process is a fork of the rank that made the group, not a rank itself.",
                  "Make a group in the child, or start the ranks with spawn.");
  }
  return group;
}

std::string call_in_words(const comm::Group& group, int rank) {
  using Kind = comm::Call::Kind;
  static const char* const kinds[] = {"nothing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"};
  static const char* const elements[] = {"float32", "bfloat16", "float16", "int32"};
  static const char* const reductions[] = {"sum", "max", "min", "avg"};
  const comm::Call call = group.call_of(rank);
  if (call.kind == Kind::other) {
    return group.text_of(rank);
  }
  std::string text = kinds[static_cast<int>(call.kind)];
  if (call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter) {
    text += std::string(" (") + reductions[call.reduction & 3] + ") of " + std::to_string(call.count) + " " +
            elements[call.element & 3];
  } else if (call.kind != Kind::barrier) {
    const auto* const type = accel::torch_c::find_type(call.type);
    text += " of " + std::to_string(call.count) + " bytes" + (type == nullptr ? "" : std::string(" of ") + type->name);
  }
  if (call.source != comm::Call::kNoRank) {
    text += " from rank " + std::to_string(call.source);
  }
  if (call.is_symmetric) {
    text += " in symmetric memory " + std::to_string(call.place >> 44) + " at byte " +
            std::to_string(call.place & ((std::uint64_t{1} << 44) - 1));
  }
  return text;
}

std::string in_words(comm::Group& group, const comm::Failure& failure) {
  using Kind = comm::Failure::Kind;
  const std::string who = "rank " + std::to_string(failure.rank);
  char waited[64];
  std::snprintf(waited, sizeof(waited), ", after waiting %.1f s for it", static_cast<double>(failure.waited_ns) / 1e9);
  switch (failure.kind) {
    case Kind::died:
      return who + " died" + waited;
    case Kind::left:
      return failure.rank == group.rank() ? "another thread of this rank closed the group"
                                          : who + " has closed the group" + waited;
    case Kind::gave_up:
      return who + " gave up" +
             (failure.culprit == failure.rank ? std::string(" when it was interrupted")
                                              : " because of rank " + std::to_string(failure.culprit)) +
             waited;
    case Kind::late:
      return who + " is alive but did not take part" + waited;
    case Kind::interrupted:
      return "a signal ended the wait for " + who;
    case Kind::busy:
      return "the group was used inside one of its own collectives";
    case Kind::mismatch:
      return "rank " + std::to_string(group.rank()) + " called " + call_in_words(group, group.rank()) + ", " + who +
             " called " + call_in_words(group, failure.rank);
    case Kind::none:
      break;
  }
  return "";
}

// Symmetric memory, as long as a tensor uses it.
using Memories = accel::Registry<const comm::Symmetric>;

// Groups -------------------------------------------------------------------------------------------------------------

// The memory that each rank of a group contributes.
std::int64_t segment_bytes() { return comm::SlotLayout{kTuning.slot_bytes}.segment_bytes(); }

// A descriptor, or -errno.
std::int64_t create_segment(std::int64_t size_bytes) {
  int error = 0;
  const int descriptor = comm::create_segment(size_bytes, error);
  return error != 0 ? -error : descriptor;
}

// The group's number, or -errno. `descriptors`: the segments of all ranks, which become the group's. `is_here`: whether
// each rank is a thread of this process.
std::int64_t open_group(std::int64_t rank, std::vector<std::int64_t> descriptors, std::vector<std::int64_t> is_here,
                        std::int64_t timeout_ns, std::int64_t spin_ns, std::string isa) {
  comm::GroupSettings settings{static_cast<int>(rank),
                               {timeout_ns, spin_ns},
                               kTuning,
                               accel::cpu::Isa::baseline,
                               accel::is_interrupted_by_python};
  accel::cpu::parse_isa(isa.c_str(), &settings.isa);
  int error = 0;
  auto group = std::make_shared<OpenGroup>(settings, std::vector<int>(descriptors.begin(), descriptors.end()),
                                           std::vector<bool>(is_here.begin(), is_here.end()), error);
  return error != 0 ? -error : Groups::instance().add(std::move(group));
}

void set_timeout(std::int64_t group, std::int64_t timeout_ns) { find(group)->set_timeout(timeout_ns); }

void close_group(std::int64_t group) {
  find(group)->leave();
  Groups::instance().take(group);
}

// Returns a number for release_symmetric() and the address of this rank's part of symmetric memory; or -errno and 0.
// `memory`: its number in the group, the same on all ranks. The descriptors stay the caller's.
std::vector<std::int64_t> attach_symmetric(std::int64_t group, std::int64_t memory, std::int64_t size_bytes,
                                           std::vector<std::int64_t> descriptors) {
  int error = 0;
  const auto attached = find(group)->add_symmetric(
      static_cast<std::uint64_t>(memory), std::vector<int>(descriptors.begin(), descriptors.end()), size_bytes, error);
  if (attached == nullptr) {
    return {-error, 0};
  }
  return {Memories::instance().add(attached), reinterpret_cast<std::int64_t>(attached->base(attached->rank))};
}

// Call it when no tensor uses the memory any more. The group may be closed.
void release_symmetric(std::int64_t group, std::int64_t attached) {
  const auto memory = Memories::instance().take(attached);  // unmapped after the group has dropped it
  try {
    if (memory != nullptr) {
      find(group)->remove_symmetric(memory->base(memory->rank));
    }
  } catch (const std::invalid_argument&) {
  }
}

// The reason of a group's last failure: kind, rank, ms waited.
std::vector<std::int64_t> last_failure(std::int64_t group) {
  const comm::Failure failure = find(group)->last_failure();
  return {static_cast<std::int64_t>(failure.kind), failure.rank, failure.waited_ns / 1'000'000};
}

// Collectives --------------------------------------------------------------------------------------------------------

template <class Collective>
void run(std::int64_t number, const Collective& collective) {
  const auto group = find(number);
  const comm::Failure failure = group->run(collective);
  if (failure.kind != comm::Failure::Kind::none) {
    throw std::runtime_error("shm_comm: " + in_words(*group, failure));
  }
}

constexpr accel::Argument kTensor{"the tensor", accel::Argument::kNoList};
constexpr accel::Argument kOutput{"the output", accel::Argument::kNoList};
constexpr accel::Argument kInput{"the input", accel::Argument::kNoList};

struct ReducedTensor : accel::DenseMemory {
  comm::Element element;

  comm::Collectives::Numbers numbers(std::int64_t reduction) const {
    const auto chosen = static_cast<comm::Reduction>(reduction);
    if (chosen == comm::Reduction::avg && element == comm::Element::int32) {
      accel::refuse("avg does not support int32 tensors.",
                    "Reduce with sum and divide, or convert them, for example x.float().");
    }
    return {numel, element, chosen};
  }
};

comm::Element element_of(const Tensor& tensor, const accel::Argument& argument) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return comm::Element::float32;
    case ScalarType::BFloat16:
      return comm::Element::bfloat16;
    case ScalarType::Half:
      return comm::Element::float16;
    case ScalarType::Int:
      return comm::Element::int32;
    default:
      accel::host_memory(tensor, argument, 0);  // the device is checked first
      accel::refuse(argument.text() + " is of type " + tensor.type_name() +
                        "; only float32, bfloat16, float16 and int32 are supported.",
                    "Convert it, for example x.float().");
  }
}

ReducedTensor reduced_tensor(const Tensor& tensor, const accel::Argument& argument) {
  const comm::Element element = element_of(tensor, argument);
  return {accel::host_memory(tensor, argument, comm::size_bytes(element)), element};
}

accel::DenseMemory bytes_of(const Tensor& tensor, const accel::Argument& argument) {
  return accel::host_memory(tensor, argument, static_cast<std::int64_t>(tensor.element_size()));
}

// `whole` has a part like `part` for each rank; `part` may be this rank's.
void require_parts(const comm::Group& group, const Tensor& whole, const accel::DenseMemory& whole_memory,
                   const Tensor& part, const accel::DenseMemory& part_memory) {
  if (whole.scalar_type() != part.scalar_type() || whole_memory.numel != part_memory.numel * group.size()) {
    accel::refuse("A tensor of " + std::to_string(whole_memory.numel) + " elements of " + whole.type_name() +
                      " does not hold " + std::to_string(part_memory.numel) + " of " + part.type_name() + " for " +
                      std::to_string(group.size()) + " ranks.",
                  "Pass tensors of one type, one with as many times the other's elements as there are ranks.");
  }
  if (part_memory.data != whole_memory.data + group.rank() * part_memory.bytes &&
      accel::overlap(whole_memory, part_memory)) {
    accel::refuse("The output and the input overlap.", "Pass the rank's own part of the larger one, or x.clone().");
  }
}

void all_reduce_in_place(Tensor tensor, std::int64_t group, std::int64_t reduction) {
  const ReducedTensor memory = reduced_tensor(tensor, kTensor);
  const auto numbers = memory.numbers(reduction);
  run(group, [&](comm::Collectives& all) { return all.all_reduce(memory.data, memory.data, numbers); });
}

Tensor all_reduce(Tensor tensor, std::int64_t group, std::int64_t reduction) {
  const ReducedTensor memory = reduced_tensor(tensor, kTensor);
  const auto numbers = memory.numbers(reduction);
  Tensor result = accel::empty_like(tensor);
  void* const out = result.data_ptr();
  run(group, [&](comm::Collectives& all) { return all.all_reduce(memory.data, out, numbers); });
  return result;
}

void reduce_scatter(Tensor output, Tensor input, std::int64_t group, std::int64_t reduction) {
  const ReducedTensor out = reduced_tensor(output, kOutput);
  const ReducedTensor in = reduced_tensor(input, kInput);
  require_parts(*find(group), input, in, output, out);
  const auto numbers = out.numbers(reduction);
  run(group, [&](comm::Collectives& all) { return all.reduce_scatter(in.data, out.data, numbers); });
}

void all_gather(Tensor output, Tensor input, std::int64_t group) {
  const accel::DenseMemory out = bytes_of(output, kOutput);
  const accel::DenseMemory in = bytes_of(input, kInput);
  require_parts(*find(group), output, out, input, in);
  run(group, [&](comm::Collectives& all) { return all.all_gather(in.data, out.data, in.bytes, input.dtype()); });
}

void broadcast(Tensor tensor, std::int64_t group, std::int64_t source) {
  const accel::DenseMemory memory = bytes_of(tensor, kTensor);
  const auto found = find(group);
  if (source < 0 || source >= found->size()) {
    accel::refuse("src is " + std::to_string(source) + " in a group of " + std::to_string(found->size()) + ".",
                  "Pass a rank from 0 to size - 1.");
  }
  run(group, [&](comm::Collectives& all) {
    return all.broadcast(memory.data, memory.bytes, static_cast<int>(source), tensor.dtype());
  });
}

void barrier(std::int64_t group) {
  run(group, [](comm::Collectives& all) { return all.barrier(); });
}

void agree(std::int64_t group, std::string text) {
  run(group, [&](comm::Collectives& all) { return all.agree(text); });
}

// For fake tensors: the shape of the result.
Tensor all_reduce_meta(Tensor tensor, std::int64_t, std::int64_t) { return accel::empty_like(tensor); }

#define COLLECTIVE(function) ACCEL_BOX_TRACED(function), ACCEL_BOX_REFUSE_LAZY(function)

const accel::Ops ops = {
    {"segment_bytes() -> int", ACCEL_BOX(&segment_bytes)},
    {"create_segment(int size_bytes) -> int", ACCEL_BOX(&create_segment)},
    {"open_group(int rank, int[] descriptors, int[] is_here, int timeout_ns, int spin_ns, str isa) -> int",
     ACCEL_BOX(&open_group)},
    {"set_timeout(int group, int timeout_ns) -> ()", ACCEL_BOX(&set_timeout)},
    {"close_group(int group) -> ()", ACCEL_BOX(&close_group)},
    {"attach_symmetric(int group, int memory, int size_bytes, int[] descriptors) -> int[]",
     ACCEL_BOX(&attach_symmetric)},
    {"release_symmetric(int group, int attached) -> ()", ACCEL_BOX(&release_symmetric)},
    {"last_failure(int group) -> int[]", ACCEL_BOX(&last_failure)},
    {"barrier(int group) -> ()", ACCEL_BOX(&barrier)},
    {"agree(int group, str text) -> ()", ACCEL_BOX(&agree)},
    {"all_reduce(Tensor x, int group, int reduction) -> Tensor", ACCEL_BOX(&all_reduce), ACCEL_BOX(&all_reduce_meta),
     ACCEL_BOX_REFUSE_LAZY(&all_reduce)},
    {"all_reduce_(Tensor(a!) x, int group, int reduction) -> ()", COLLECTIVE(&all_reduce_in_place)},
    {"reduce_scatter(Tensor(a!) output, Tensor input, int group, int reduction) -> ()", COLLECTIVE(&reduce_scatter)},
    {"all_gather(Tensor(a!) output, Tensor input, int group) -> ()", COLLECTIVE(&all_gather)},
    {"broadcast_(Tensor(a!) x, int group, int source) -> ()", COLLECTIVE(&broadcast)},
};

}  // namespace

ACCEL_OP_TABLE(ops, "CPU")
