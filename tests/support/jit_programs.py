"""A program that compiles by the JIT compiler that its argument names."""

PARTS = {"compiled": "Inductor", "extension": "cpp_extension", "ffi": "tvm-ffi", "ours": "accel-ops"}
"""The program's argument, and whose cache it uses."""

PROGRAM = """
import sys

def compiled():
    import torch
    torch.compile(lambda x: torch.nn.functional.gelu(x * 2).sum(1))(torch.randn(8, 8))

def extension():
    from torch.utils.cpp_extension import load
    load("plain", ["plain.cpp"])

def ffi():
    import tvm_ffi.cpp
    tvm_ffi.cpp.load_inline("ffi", cpp_sources="int two() { return 2; }", functions=["two"])

def ours():
    from op_builder.engine import Binding, Recipe, build_library
    build_library(Recipe("plain", Binding.PYTHON, ("plain.cpp",)))

globals()[sys.argv[1]]()
"""

EXTENSION = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plain", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_plain() { return PyModule_Create(&definition); }
"""
