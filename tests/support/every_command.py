"""Each command in one process that has imported and probed nothing yet; then a load.

The load's module needs torch, so that a child that imports torch tries it. A copy runs next to own.py.
"""

from op_builder.__main__ import main

TEXT = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "m", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_m() {
  return PyImport_ImportModule("torch") == nullptr ? nullptr : PyModule_Create(&definition);
}
"""

if __name__ == "__main__":
    for command in ("report", "build own:OwnBuilder", "cache verify", "launch --num_accelerators 1 --no_python true"):
        assert main(command.split()) == 0, command
    from op_builder import load_inline  # it imports what the commands must import themselves

    print(load_inline("m", TEXT).__name__)
