// Functions as torch's dispatcher calls them: with all arguments, and then all results, in one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_c/library.h"
#include "torch_c/tensor.h"

namespace accel {

namespace torch_c {

// Numbers and handles lie in the value's first bytes in memory; on big-endian machines, in its last.
template <class T>
constexpr std::size_t kPlace = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? sizeof(StableIValue) - sizeof(T) : 0;

template <class T>
T bits_from(StableIValue value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(StableIValue), "it is passed some other way");
  T bits;
  std::memcpy(&bits, reinterpret_cast<const char*>(&value) + kPlace<T>, sizeof(T));
  return bits;
}

template <class T>
StableIValue bits_to(T bits) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(StableIValue), "it is passed some other way");
  StableIValue value = 0;
  std::memcpy(reinterpret_cast<char*>(&value) + kPlace<T>, &bits, sizeof(T));
  return value;
}

// `take` receives an argument, which then belongs to the function; `give` passes a result to torch.
template <class T>
struct Passed {
  static T take(StableIValue value) { return bits_from<T>(value); }
  static StableIValue give(T result) { return bits_to(result); }
};

template <>
struct Passed<Tensor> {
  static Tensor take(StableIValue value) { return Tensor(bits_from<AtenTensorHandle>(value)); }
  static StableIValue give(Tensor result) { return bits_to(result.release()); }
};

template <>
struct Passed<std::string> {
  static std::string take(StableIValue value) {
    const auto handle = bits_from<StringHandle>(value);
    std::string text(ACCEL_TORCH_GET(const char*, torch_string_c_str, handle),
                     ACCEL_TORCH_GET(std::size_t, torch_string_length, handle));
    ACCEL_TORCH(torch_delete_string, handle);
    return text;
  }
  static StableIValue give(const std::string& result) {
    return bits_to(ACCEL_TORCH_GET(StringHandle, torch_new_string_handle, result.data(), result.size()));
  }
};

template <class T>
struct Passed<std::vector<T>> {
  static std::vector<T> take(StableIValue value) {
    const auto list = bits_from<StableListHandle>(value);
    const auto size = ACCEL_TORCH_GET(std::size_t, torch_list_size, list);
    std::vector<T> items;
    items.reserve(size);
    for (std::size_t i = 0; i < size; ++i) {
      items.push_back(Passed<T>::take(ACCEL_TORCH_GET(StableIValue, torch_list_get_item, list, i)));
    }
    ACCEL_TORCH(torch_delete_list, list);
    return items;
  }
  static StableIValue give(const std::vector<T>& result) {
    const auto list = ACCEL_TORCH_GET(StableListHandle, torch_new_list_reserve_size, result.size());
    for (const T& item : result) {
      ACCEL_TORCH(torch_list_push_back, list, Passed<T>::give(item));
    }
    return bits_to(list);
  }
};

// A pointer to the value, allocated by torch with new, or null.
template <class T>
struct Passed<std::optional<T>> {
  static std::optional<T> take(StableIValue value) {
    const auto pointer = bits_from<StableIValue*>(value);
    if (pointer == nullptr) {
      return std::nullopt;
    }
    const StableIValue inner = *pointer;
    delete pointer;
    return Passed<T>::take(inner);
  }
};

template <class Result, class... Arguments, std::size_t... Index>
void call(Result (*function)(Arguments...), StableIValue* stack, std::index_sequence<Index...>) {
  if constexpr (std::is_void_v<Result>) {
    function(Passed<Arguments>::take(stack[Index])...);
  } else {
    stack[0] = Passed<Result>::give(function(Passed<Arguments>::take(stack[Index])...));
  }
}

// An op whose schema and function differ in the number of arguments or results would read and write beyond the stack.
inline void require_counts(std::uint64_t arguments, std::uint64_t parameters, std::uint64_t results,
                           std::uint64_t returned) {
  if (arguments != parameters || results != returned) {
    throw std::logic_error("The schema has " + std::to_string(arguments) + " arguments and " + std::to_string(results) +
                           " results, its function " + std::to_string(parameters) + " and " + std::to_string(returned) +
                           ".");
  }
}

template <class Result, class... Arguments>
void call(Result (*function)(Arguments...), StableIValue* stack, std::uint64_t arguments, std::uint64_t results) {
  static_assert((!std::is_reference_v<Arguments> && ...), "take arguments by value: they are the function's");
  require_counts(arguments, sizeof...(Arguments), results, std::is_void_v<Result> ? 0 : 1);
  call(function, stack, std::index_sequence_for<Arguments...>());
}

template <auto function>
void boxed(StableIValue* stack, std::uint64_t arguments, std::uint64_t results) {
  call(function, stack, arguments, results);
}

template <auto function>
struct Idle;

template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct Idle<function> {
  static_assert(std::is_void_v<Result> || std::is_arithmetic_v<Result>, "torch must know the shapes of other results");
  static Result call(Arguments...) { return Result(); }
};

template <auto function>
struct RefuseLazy;

template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct RefuseLazy<function> {
  static Result call(Arguments...) {
    throw std::invalid_argument("A tensor is a lazy view.\nPass x.resolve_conj().resolve_neg().");
  }
};

}  // namespace torch_c
}  // namespace accel

// The boxed form of a function: its parameters, by value, and its result, if it has one, are of the types of Passed<>.
#define ACCEL_BOX(function) (::accel::Boxed{::accel::torch_c::boxed<(function)>, ::accel::torch_c::kAbi})

// For tracing an op that returns nothing or a number: takes what the function takes, does nothing and returns 0.
#define ACCEL_BOX_IDLE(function) ACCEL_BOX(&::accel::torch_c::Idle<(function)>::call)

// For lazy conjugates and negations: refuses them. torch itself would call the function with copies of them, and fail
// only afterwards if the op writes to one.
#define ACCEL_BOX_REFUSE_LAZY(function) ACCEL_BOX(&::accel::torch_c::RefuseLazy<(function)>::call)
