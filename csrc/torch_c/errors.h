// The Python class of an op's error, whatever torch makes of C++ exceptions: torch raises std::invalid_argument as a
// ValueError and std::bad_alloc as a MemoryError up to 2.14, and both as a RuntimeError from 2.15 on.
//
// So the text of an exception that leaves an op begins with the name of its class, "ValueError: "; the loaded op
// (op_builder/load/operators.py) raises that class.
#pragma once

#include <cstddef>
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

// Calls a boxed function. The classes are those that pybind11 documents.
inline void call_naming_errors(BoxedFunction function, StableIValue* stack, uint64_t arguments, uint64_t results) {
  try {
    function(stack, arguments, results);
  } catch (const std::invalid_argument& error) {
    throw Named("ValueError", error);
  } catch (const std::domain_error& error) {
    throw Named("ValueError", error);
  } catch (const std::length_error& error) {
    throw Named("ValueError", error);
  } catch (const std::range_error& error) {
    throw Named("ValueError", error);
  } catch (const std::bad_alloc& error) {
    throw Named("MemoryError", error);
  } catch (const std::out_of_range& error) {
    throw Named("IndexError", error);
  } catch (const std::overflow_error& error) {
    throw Named("OverflowError", error);
  }
}

// torch gives a boxed function no context, so each one of a library is called by a function of its own.
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

// `function`, with the Python class in the text of its exceptions.
inline BoxedFunction naming_errors(BoxedFunction function) {
  if (function_count == kMostFunctions) {
    throw std::runtime_error("A library registers at most " + std::to_string(kMostFunctions) + " functions.");
  }
  functions[function_count] = function;
  return caller(function_count++, std::make_index_sequence<kMostFunctions>());
}

}  // namespace accel::torch_c
