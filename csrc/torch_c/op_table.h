// A binding's ops as one table, registered for all dispatch keys.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "torch_c/boxed.h"
#include "torch_c/library.h"

namespace accel {

// An op: its schema, without a namespace, and its function. `traced` runs for tensors without memory; an op without it
// is registered for every device: it takes no tensors, or refuses those of other devices. `lazy` runs for lazy
// conjugates and negations; without it torch resolves them.
struct Op {
  const char* schema;
  Boxed function;
  Boxed traced = {nullptr, 0};
  Boxed lazy = {nullptr, 0};
};
using Ops = std::vector<Op>;

// Registers ops, those that take tensors for the keys `devices`.
inline void register_ops(const Ops& ops, std::initializer_list<const char*> devices, const char* name_space) {
  Library& schemas = *new Library(name_space, nullptr);
  for (const Op& op : ops) {
    schemas.def(op.schema);
  }
  const auto implement = [&](const char* key, bool takes_tensors, Boxed Op::* function) {
    Library& part = *new Library(name_space, key);
    for (const Op& op : ops) {
      if ((op.traced.function != nullptr) == takes_tensors && (op.*function).function != nullptr) {
        const std::string schema = op.schema;
        part.impl(schema.substr(0, schema.find('(')).c_str(), op.*function);
      }
    }
  };
  for (const char* const device : devices) {
    implement(device, true, &Op::function);
  }
  implement("Meta", true, &Op::traced);
  implement("Conjugate", true, &Op::lazy);
  implement("Negative", true, &Op::lazy);
  implement("CompositeExplicitAutograd", false, &Op::function);
}

}  // namespace accel

// The functions of an op that, traced, does nothing: it returns nothing or a number.
#define ACCEL_BOX_TRACED(function) ACCEL_BOX(function), ACCEL_BOX_IDLE(function)

// At namespace scope of one binding file: ACCEL_OP_TABLE(ops, "CPU", "CUDA"), with accel::Ops and the dispatch keys.
#define ACCEL_OP_TABLE(ops, ...) ACCEL_REGISTER_LIBRARY(::accel::register_ops(ops, {__VA_ARGS__}, name_space))
