// One function, value(), as a plain CPython module: it compiles in a second and needs no torch.
#include <Python.h>

#include "value.h"

namespace {
PyObject *value(PyObject *, PyObject *) { return PyLong_FromLong(VALUE); }
PyMethodDef methods[] = {{"value", value, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torture", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
}  // namespace

// Loaders pass the name of the module in this macro, as torch's does.
#define INIT_NAMED(name) PyInit_##name
#define INIT(name) INIT_NAMED(name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
