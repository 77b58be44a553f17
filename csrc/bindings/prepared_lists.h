// Lists of tensors that an optimizer's op keeps from call to call; Python refers to them by numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/host_tensors.h"
#include "common/mutex.h"
#include "common/registry.h"
#include "torch_c/op_table.h"
#include "torch_c/parallel.h"
#include "torch_c/tensor.h"

namespace accel {

// A thread is worth waking to compare some hundred tensors.
constexpr std::int64_t kGrainTensors = 512;

// The properties of tensors that kernels' arguments depend on: memory, length, type and density. The owner keeps the
// tensors alive. The size of the storage is one of them: a storage that was freed and allocated again smaller often has
// the same address.
class WatchedTensors {
 public:
  // Replaces the watched tensors.
  void watch(std::initializer_list<const Tensors*> lists) {
    std::vector<AtenTensorHandle> handles;
    for (const Tensors* const tensors : lists) {
      for (const Tensor& tensor : *tensors) {
        handles.push_back(tensor.get());
      }
    }
    watched_.assign(handles.size(), Watched());
    parallel_for(0, static_cast<std::int64_t>(handles.size()), kGrainTensors,
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t i = first; i < last; ++i) {
                     watched_[i] = Watched(handles[i]);
                   }
                 });
  }

  void clear() { watched_.clear(); }

  // False if nothing is watched.
  bool are_unchanged() const { return are_unchanged(watched_.size()); }

  // Which of the first `count` tensors changed; none if nothing is watched.
  std::vector<std::int64_t> changed(std::size_t count) const {
    std::vector<std::int64_t> found;
    if (watched_.empty() || are_unchanged(count)) {
      return found;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_unchanged(&watched_[i], 1)) {
        found.push_back(static_cast<std::int64_t>(i));
      }
    }
    return found;
  }

 private:
  bool are_unchanged(std::size_t count) const {
    constexpr std::int64_t kBlock = 32;
    std::atomic<bool> unchanged{!watched_.empty()};
    parallel_for(0, static_cast<std::int64_t>(count), kGrainTensors, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; i += kBlock) {
        if (!is_unchanged(&watched_[i], i + kBlock < last ? kBlock : last - i)) {
          unchanged.store(false, std::memory_order_relaxed);
          return;
        }
      }
    });
    return unchanged;
  }

  struct Watched {
    AtenTensorHandle tensor = nullptr;
    void* data = nullptr;
    std::int64_t stored_bytes = 0;
    std::int64_t numel = -1;
    std::int32_t dtype = -1;
    bool is_contiguous = false;

    Watched() = default;
    // A property that cannot be read, such as the memory of a sparse tensor, differs from everything.
    explicit Watched(AtenTensorHandle of) : tensor(of) {
      const bool is_known = aoti_torch_get_data_ptr(tensor, &data) == 0 &&
                            aoti_torch_get_storage_size(tensor, &stored_bytes) == 0 &&
                            aoti_torch_get_numel(tensor, &numel) == 0 && aoti_torch_get_dtype(tensor, &dtype) == 0 &&
                            aoti_torch_is_contiguous(tensor, &is_contiguous) == 0;
      numel = is_known ? numel : -1;
    }
    template <class T, class Get>
    bool has(T Watched::* member, const Get& get) const {
      T now{};
      return numel >= 0 && get(tensor, &now) == 0 && now == this->*member;
    }
  };

  // Property by property, not tensor by tensor: the tensors are not in the caches, since an update goes through more
  // memory than caches hold, and this way a processor waits for many of them at once.
  static bool is_unchanged(const Watched* watched, std::int64_t count) {
    const auto all = [&](auto member, const auto& get) {
      bool are_same = true;
      for (std::int64_t i = 0; i < count; ++i) {
        are_same &= watched[i].has(member, get);
      }
      return are_same;
    };
    return all(&Watched::numel, aoti_torch_get_numel) && all(&Watched::data, aoti_torch_get_data_ptr) &&
           all(&Watched::stored_bytes, aoti_torch_get_storage_size) && all(&Watched::dtype, aoti_torch_get_dtype) &&
           all(&Watched::is_contiguous, aoti_torch_is_contiguous);
  }

  std::vector<Watched> watched_;
};

// The tensors of a list, checked before every update. Gradients are watched separately: most training loops make new
// ones for each step.
struct PreparedList {
  // Held by each call that uses the list: torch calls ops without Python's lock, so that another thread may replace the
  // gradients during an update.
  Mutex mutex;
  TensorLists lists;
  Tensors steps;  // counters
  WatchedTensors watched;
  WatchedTensors watched_grads;

  // Calls check_all() if `must_check_all` or anything except gradients changed, else check_grads() if those did. If
  // they throw, the next call checks again.
  template <class CheckAll, class CheckGrads>
  void check(bool must_check_all, const CheckAll& check_all, const CheckGrads& check_grads) {
    if (must_check_all || !watched.are_unchanged()) {
      watched.clear();
      check_all();
      watched.watch({&lists.params, &lists.states, &lists.copies, &steps});
    } else if (!watched_grads.are_unchanged()) {
      watched_grads.clear();
      check_grads();
    } else {
      return;
    }
    watched_grads.watch({&lists.grads});
  }
};

// The lists of an op, whose type derives from PreparedList, and the ops that do not depend on that type.
template <class Prepared>
class PreparedLists {
 public:
  static Ops ops() {
    return {
        {"replace_grads(int list, Tensor[] grads) -> int[]", ACCEL_BOX(&replace_grads), ACCEL_BOX(&replace_grads_meta)},
        {"moved_params(int list) -> int[]", ACCEL_BOX(&moved_params)},
        {"release_grads(int list) -> ()", ACCEL_BOX(&release_grads)},
        {"forget(int list) -> ()", ACCEL_BOX(&forget)},
    };
  }

  static std::int64_t add(std::shared_ptr<Prepared> prepared) { return All::instance().add(std::move(prepared)); }

  static std::shared_ptr<Prepared> find(std::int64_t number) {
    auto prepared = All::instance().find(number);
    if (prepared == nullptr) {
      refuse("Prepared list " + std::to_string(number) + " does not exist.", "Call prepare first.");
    }
    return prepared;
  }

 private:
  using All = Registry<Prepared>;

  static void forget(std::int64_t number) { All::instance().take(number); }

  // Returns the number of gradients that the list took, 0 if one is not on the device of its parameter; then the
  // indices of those that are not contiguous, which an update would refuse.
  static std::vector<std::int64_t> replace_grads(std::int64_t number, Tensors grads) {
    const auto prepared = find(number);
    const Lock lock(prepared->mutex);
    const Tensors& params = prepared->lists.params;
    prepared->lists.require_length(grads, 1, "grad");
    std::vector<std::int64_t> found = {static_cast<std::int64_t>(grads.size())};
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].device_type() != params[i].device_type() ||
          (!grads[i].is_cpu() && grads[i].device_index() != params[i].device_index())) {
        return {0};
      }
      if (!grads[i].is_contiguous()) {
        found.push_back(static_cast<std::int64_t>(i));
      }
    }
    prepared->lists.grads.swap(grads);  // frees the old ones without the lock
    prepared->watched_grads.clear();
    return found;
  }
  static std::vector<std::int64_t> replace_grads_meta(std::int64_t, Tensors) { return {0}; }

  // The indices of parameters that changed in place since the last update.
  static std::vector<std::int64_t> moved_params(std::int64_t number) {
    const auto prepared = find(number);
    const Lock lock(prepared->mutex);
    return prepared->watched.changed(prepared->lists.params.size());
  }

  static void release_grads(std::int64_t number) {
    const auto prepared = find(number);
    Tensors released;  // freed without the lock
    const Lock lock(prepared->mutex);
    prepared->watched_grads.clear();
    released.swap(prepared->lists.grads);
  }
};

}  // namespace accel
