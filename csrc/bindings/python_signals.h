// Signal handlers written in Python, run while an op waits.
//
// Python's functions, all of its stable ABI, are declared weak, so that one binary works with every CPython and opens
// without any. If they are missing, no signal ends a wait.
#pragma once

extern "C" {
[[gnu::weak]] int PyGILState_Ensure();
[[gnu::weak]] void PyGILState_Release(int state);
[[gnu::weak]] int PyErr_CheckSignals();
[[gnu::weak]] void PyErr_Fetch(void** type, void** value, void** traceback);
[[gnu::weak]] void PyErr_Restore(void* type, void* value, void* traceback);
[[gnu::weak]] void PyErr_WriteUnraisable(void* object);
[[gnu::weak]] int Py_AddPendingCall(int (*function)(void*), void* argument);
}

namespace accel {

// The exception of a handler, between the wait that it ended and the return to Python. Used with Python's lock held.
struct HandlerError {
  void* type;
  void* value;
  void* traceback;
};

inline int raise_handler_error(void* error) {
  auto* const kept = static_cast<HandlerError*>(error);
  PyErr_Restore(kept->type, kept->value, kept->traceback);
  delete kept;
  return -1;
}

// Runs the handlers of signals that have arrived; does nothing except on Python's main thread. True when one raised:
// the op must then fail. torch replaces the exception by its own, so Python is asked to raise it once more when the op
// has returned.
inline bool is_interrupted_by_python() {
  if (PyErr_CheckSignals == nullptr) {
    return false;
  }
  const int state = PyGILState_Ensure();
  const bool has_raised = PyErr_CheckSignals() != 0;
  if (has_raised) {
    auto* const error = new HandlerError;
    PyErr_Fetch(&error->type, &error->value, &error->traceback);
    if (Py_AddPendingCall(raise_handler_error, error) != 0) {  // Python's queue of calls is full
      raise_handler_error(error);
      PyErr_WriteUnraisable(nullptr);
    }
  }
  PyGILState_Release(state);
  return has_raised;
}

}  // namespace accel
