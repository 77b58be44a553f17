// Noticing that a tensor which is kept from call to call has changed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "common/partition.h"
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

  // False where nothing is watched.
  bool are_unchanged() const {
    std::atomic<bool> unchanged{size() > 0};
    parallel_for(0, size(), kGrainTensors, [&](std::int64_t first, std::int64_t last) {
      if (!are_unchanged(first, last)) {
        unchanged = false;
      }
    });
    return unchanged;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(watched_.size()); }

  // Whether those in [first, last) are as they were.
  bool are_unchanged(std::int64_t first, std::int64_t last) const {
    for (std::int64_t i = first; i < last; ++i) {
      if (i + kTensorsAhead < last) {
        prefetch_tensor(watched_[i + kTensorsAhead].tensor);
      }
      if (!watched_[i].is_unchanged()) {
        return false;
      }
    }
    return true;
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

  // What tensors of a list are as they were, as far as somebody has just looked.
  enum Unchanged : std::int64_t { kNone = 0, kAllButGrads = 1, kGrads = 2 };

  // Looks at all tensors of some lists while the calling thread calls beside(); what of each list is as it was.
  static std::vector<std::int64_t> look(const std::vector<const WatchedList*>& lists, Beside beside) {
    std::vector<const WatchedTensors*> parts;
    std::vector<std::int64_t> starts = {0};
    for (const WatchedList* const list : lists) {
      for (const WatchedTensors* const part : {&list->others_, &list->grads_}) {
        parts.push_back(part);
        starts.push_back(starts.back() + part->size());
      }
    }
    std::vector<std::atomic<bool>> changed(parts.size());
    parallel_for_beside(
        starts.back(), kGrainTensors,
        [&](std::int64_t first, std::int64_t last) {
          for_each_piece(starts.data(), static_cast<std::int64_t>(parts.size()), first, last,
                         [&](std::int64_t i, std::int64_t from, std::int64_t to) {
                           if (!parts[i]->are_unchanged(from, to)) {
                             changed[i] = true;
                           }
                         });
        },
        beside);
    std::vector<std::int64_t> unchanged;
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      unchanged.push_back((changed[i] ? kNone : kAllButGrads) | (changed[i + 1] ? kNone : kGrads));
    }
    return unchanged;
  }

  // Calls check_all() where it must or where any of `others` changed, else check_grads() where `grads` did. What they
  // throw leaves nothing half checked: the next call checks everything. What is `unchanged` is not looked at again.
  template <class CheckAll, class CheckGrads>
  void check(std::int64_t unchanged, bool must_check_all, std::initializer_list<const std::vector<Tensor>*> others,
             const std::vector<Tensor>& grads, const CheckAll& check_all, const CheckGrads& check_grads) {
    WatchedTensors watched = std::move(others_);
    others_.clear();
    const auto is_unchanged = [unchanged](const WatchedTensors& tensors, std::int64_t which) {
      return tensors.size() > 0 && ((unchanged & which) != 0 || tensors.are_unchanged());
    };
    if (must_check_all || !is_unchanged(watched, kAllButGrads)) {
      check_all();
      watched.watch(others);
      watch(grads);
    } else if (!is_unchanged(grads_, kGrads)) {
      check_grads();
      watch(grads);
    }
    others_ = std::move(watched);
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
