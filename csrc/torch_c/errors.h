// Passes the errors of ops to torch.
//
// No exception leaves the library: it may have another C++ library than torch (ziglang's libc++), whose exceptions
// would end the process. torch throws one in its place, which Python sees as a RuntimeError. Its text begins with the
// name of the class that Python should see, "ValueError: ", and the loaded op (op_builder/load/open.py) raises that.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "torch_c/functions.h"

namespace accel::torch_c {

template <class... Exceptions>
bool is_any(const std::exception& error) {
  return ((dynamic_cast<const Exceptions*>(&error) != nullptr) || ...);
}

// The name of the Python class of an error, with a colon; empty for a RuntimeError. They are those that pybind11
// documents.
inline const char* python_class(const std::exception& error) {
  const bool is_value_error =
      is_any<std::invalid_argument, std::domain_error, std::length_error, std::range_error>(error);
  return is_value_error                       ? "ValueError: "
         : is_any<std::bad_alloc>(error)      ? "MemoryError: "
         : is_any<std::out_of_range>(error)   ? "IndexError: "
         : is_any<std::overflow_error>(error) ? "OverflowError: "
                                              : "";
}

// Calls a boxed function; returns the text of its error, or null. The text is kept until the thread's next error.
[[gnu::noinline]] inline const char* error_of(BoxedFunction function, StableIValue* stack, uint64_t arguments,
                                              uint64_t results) noexcept {
  static thread_local char text[4096];
  try {
    function(stack, arguments, results);
    return nullptr;
  } catch (const std::exception& error) {
    std::snprintf(text, sizeof(text), "%s%s", python_class(error), error.what());
    return text;
  } catch (...) {
    return "The op threw an exception of an unknown class.";
  }
}

// Calls a boxed function; torch throws its error. That exception passes this function, which must have nothing to clean
// up, since libc++ cannot do so for an exception of libstdc++.
inline void call_for_torch(BoxedFunction function, StableIValue* stack, uint64_t arguments, uint64_t results) {
  if (const char* const error = error_of(function, stack, arguments, results)) {
    aoti_torch_check(false, "", "", 0, error);
  }
}

// torch passes no context to a boxed function, so each function of a library has its own caller.
constexpr std::size_t kMostFunctions = 256;
inline BoxedFunction functions[kMostFunctions];
inline std::size_t function_count = 0;

template <std::size_t i>
void call_function(StableIValue* stack, uint64_t arguments, uint64_t results) {
  call_for_torch(functions[i], stack, arguments, results);
}

template <std::size_t... i>
BoxedFunction caller(std::size_t index, std::index_sequence<i...>) {
  static constexpr BoxedFunction callers[] = {call_function<i>...};
  return callers[index];
}

// Returns `function` with its errors passed to torch.
inline BoxedFunction passing_errors(BoxedFunction function) {
  if (function_count == kMostFunctions) {
    throw std::runtime_error("A library registers at most " + std::to_string(kMostFunctions) + " functions.");
  }
  functions[function_count] = function;
  return caller(function_count++, std::make_index_sequence<kMostFunctions>());
}

}  // namespace accel::torch_c
