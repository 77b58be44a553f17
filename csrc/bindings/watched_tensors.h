// Noticing that a tensor which is kept from call to call has changed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "torch_c/parallel.h"
#include "torch_c/tensor.h"

namespace accel {

// A thread is worth waking for looking at some hundred tensors.
constexpr std::int64_t kGrainTensors = 512;

// How many tensors ahead of the one that is looked at the memory of others is fetched: it is in no cache, since an update
// goes through more memory than caches hold. It halves the time that looking takes.
constexpr std::int64_t kTensorsAhead = 8;

// Has memory fetched that questions about a tensor will want. A hint: a handle is the address of an object whose first
// word is, today, the address of the tensor, and were it anything else, only a fetch would be wasted.
inline void prefetch_tensor(AtenTensorHandle handle) {
  constexpr std::size_t kLines = 3;
  const char* tensor = nullptr;
  std::memcpy(&tensor, handle, sizeof(tensor));
  for (std::size_t line = 0; line < kLines; ++line) {
    __builtin_prefetch(tensor + 64 * line);
  }
}

// What kernels' arguments were made from: the memory, length, type and density of tensors, which the owner
// keeps alive. The size of their storage belongs to it: one that was freed and allocated again, but smaller, often
// lies where it was before. Looking at a small tensor takes longer than updating it, mostly waiting for memory, so
// the threads share that, and only what can have changed is looked at.
class WatchedTensors {
 public:
  // From now on these, and no others.
  void watch(std::initializer_list<const std::vector<Tensor>*> lists) {
    std::vector<AtenTensorHandle> handles;
    for (const auto* const tensors : lists) {
      for (const Tensor& tensor : *tensors) {
        handles.push_back(tensor.get());
      }
    }
    watched_.assign(handles.size(), Watched());
    const auto count = static_cast<std::int64_t>(handles.size());
    parallel_for(0, count, kGrainTensors, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        watched_[i] = Watched(handles[i]);
      }
    });
  }

  void clear() { watched_.clear(); }

  // False where nothing is watched. Meanwhile the calling thread calls beside(), if it is there.
  bool are_unchanged(const Beside& beside = {}) const {
    std::atomic<bool> unchanged{!watched_.empty()};
    parallel_for_beside(
        static_cast<std::int64_t>(watched_.size()), kGrainTensors,
        [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t i = first; i < last; ++i) {
            if (i + kTensorsAhead < last) {
              prefetch_tensor(watched_[i + kTensorsAhead].tensor);
            }
            if (!watched_[i].is_unchanged()) {
              unchanged.store(false, std::memory_order_relaxed);
              return;
            }
          }
        },
        beside);
    return unchanged;
  }

 private:
  struct Watched {
    AtenTensorHandle tensor = nullptr;
    void* data = nullptr;
    std::int64_t stored_bytes = 0;
    std::int64_t numel = -1;
    std::int32_t dtype = -1;
    bool is_contiguous = false;

    Watched() = default;
    // What cannot be asked of it, such as the memory of a sparse tensor, differs from everything.
    explicit Watched(AtenTensorHandle of) : tensor(of) {
      const bool is_known = aoti_torch_get_data_ptr(tensor, &data) == 0 &&
                            aoti_torch_get_storage_size(tensor, &stored_bytes) == 0 &&
                            aoti_torch_get_numel(tensor, &numel) == 0 && aoti_torch_get_dtype(tensor, &dtype) == 0 &&
                            aoti_torch_is_contiguous(tensor, &is_contiguous) == 0;
      numel = is_known ? numel : -1;
    }
    bool is_unchanged() const {
      const Watched now(tensor);
      return now.numel >= 0 && now.data == data && now.stored_bytes == stored_bytes && now.numel == numel &&
             now.dtype == dtype && now.is_contiguous == is_contiguous;
    }
  };

  std::vector<Watched> watched_;
};

// The tensors of an optimizer's list, looked at anew before every update. Gradients are watched apart from all else:
// most training loops make them anew for each step.
class WatchedList {
 public:
  void forget_grads() {
    grads_.clear();
    grads_are_known_ = false;
  }

  // Calls check_all() where it must or where any of `others` changed, else check_grads() where `grads` did. What they
  // throw leaves nothing half checked: the next call checks everything.
  //
  // The question is asked while threads look at the tensors: whether they are still the ones that the list should hold.
  // Returns false, with nothing checked, where the answer is not yes.
  template <class CheckAll, class CheckGrads>
  bool check(bool must_check_all, std::initializer_list<const std::vector<Tensor>*> others,
             const std::vector<Tensor>& grads, const CheckAll& check_all, const CheckGrads& check_grads,
             const Question& question = {}) {
    WatchedTensors watched = std::move(others_);
    others_.clear();
    bool is_yes = true;
    Beside ask;
    if (question.address != 0) {
      ask = [&] { is_yes = question.is_answered_yes(); };
    }
    const bool others_are_unchanged = watched.are_unchanged(ask);
    if (!is_yes) {
      others_ = std::move(watched);
      return false;
    }
    if (must_check_all || !others_are_unchanged) {
      check_all();
      watched.watch(others);
      watch(grads);
    } else if (!grads_.are_unchanged()) {
      check_grads();
      watch(grads);
    }
    others_ = std::move(watched);
    return true;
  }

 private:
  // Once they have served twice; watching those that serve once would be for nothing.
  void watch(const std::vector<Tensor>& grads) {
    if (grads_are_known_) {
      grads_.watch({&grads});
    }
    grads_are_known_ = true;
  }

  WatchedTensors others_;
  WatchedTensors grads_;
  bool grads_are_known_ = false;
};

}  // namespace accel
