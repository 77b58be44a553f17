"""Compile and load a file that includes none of torch's headers, in a new process; print the time as one JSON line.

    load_plain.py LOADER KIND VARIANT

LOADER is torch.utils.cpp_extension or op_builder.cpp_extension, KIND is library (opened by ctypes) or module (of
CPython). Sources of different variants differ. torch and both loaders are imported before the clock starts.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

LIBRARY = 'extern "C" int seven() { return 7; }\n'
MODULE = """
#include <Python.h>
static PyObject* seven(PyObject*, PyObject*) { return PyLong_FromLong(7); }
static PyMethodDef methods[] = {{"seven", seven, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "m", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
#define JOINED(name) PyInit_##name
#define EXPANDED(name) JOINED(name)
PyMODINIT_FUNC EXPANDED(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""


def main() -> None:
    import torch.utils.cpp_extension  # noqa: F401 - a program that calls torch's loader has imported it

    load = importlib.import_module(sys.argv[1]).load
    is_module, variant = sys.argv[2] == "module", sys.argv[3]
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "plain.cpp"
        source.write_text(f"{MODULE if is_module else LIBRARY}// {variant}\n")
        started = time.perf_counter()
        loaded = load(f"plain_{variant}", [str(source)], is_python_module=is_module)
        load_s = time.perf_counter() - started
        assert (loaded if is_module else ctypes.CDLL(loaded)).seven() == 7
    print(json.dumps({"load_s": load_s}))


if __name__ == "__main__":
    main()
