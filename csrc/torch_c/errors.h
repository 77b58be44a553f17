// Gives the errors of ops the same Python class with every torch: torch raises std::invalid_argument as a ValueError
// and std::bad_alloc as a MemoryError up to 2.14, and both as a RuntimeError from 2.15 on.
//
// The text of an exception that leaves an op therefore begins with the name of a class, "ValueError: ". The loaded op
// (op_builder/load/operators.py) raises that class.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "torch_c/functions.h"

namespace accel::torch_c {

// An exception whose text names the Python class.
template <class Exception>
class Named : public Exception {
 public:
  Named(const char* python_class, const Exception& exception)
      : Exception(exception), text_(std::string(python_class) + ": " + exception.what()) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Throws `error` with the name of its Python class if it is one of `Exceptions`.
template <class... Exceptions>
void rethrow_as(const char* python_class, const std::exception& error) {
  const auto rethrow = [&](const auto* exception) {
    if (exception != nullptr) {
      throw Named(python_class, *exception);
    }
  };
  (rethrow(dynamic_cast<const Exceptions*>(&error)), ...);
}

// Calls a boxed function. The classes are those that pybind11 documents.
inline void call_naming_errors(BoxedFunction function, StableIValue* stack, uint64_t arguments, uint64_t results) {
  try {
    function(stack, arguments, results);
  } catch (const std::exception& error) {
    rethrow_as<std::invalid_argument, std::domain_error, std::length_error, std::range_error>("ValueError", error);
    rethrow_as<std::bad_alloc>("MemoryError", error);
    rethrow_as<std::out_of_range>("IndexError", error);
    rethrow_as<std::overflow_error>("OverflowError", error);
    throw;
  }
}

// torch passes no context to a boxed function, so each function of a library has its own caller.
constexpr std::size_t kMostFunctions = 256;
inline BoxedFunction functions[kMostFunctions];
inline std::size_t function_count = 0;

template <std::size_t i>
void call_function(StableIValue* stack, uint64_t arguments, uint64_t results) {
  call_naming_errors(functions[i], stack, arguments, results);
}

template <std::size_t... i>
BoxedFunction caller(std::size_t index, std::index_sequence<i...>) {
  static constexpr BoxedFunction callers[] = {call_function<i>...};
  return callers[index];
}

// Returns `function` with the Python class in the text of its exceptions.
inline BoxedFunction naming_errors(BoxedFunction function) {
  if (function_count == kMostFunctions) {
    throw std::runtime_error("A library registers at most " + std::to_string(kMostFunctions) + " functions.");
  }
  functions[function_count] = function;
  return caller(function_count++, std::make_index_sequence<kMostFunctions>());
}

}  // namespace accel::torch_c
