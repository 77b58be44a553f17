"""Load CPU Adam in a new process and print the times as one JSON line: ``load_cpu_adam.py PACKAGE [--wait]``.

PACKAGE has the builder: op_builder or deepspeed.ops.op_builder; the interpreter need not have the other one. torch is
imported before the clock starts, because a program that loads an op has imported it. With --wait the builder is
imported, "ready" printed, and a line on standard input starts the load.
"""

import importlib
import json
import sys
import time

import torch  # noqa: F401

started = time.perf_counter()
Builder = importlib.import_module(sys.argv[1]).CPUAdamBuilder
imported = time.perf_counter()
if sys.argv[2:] == ["--wait"]:
    print("ready", flush=True)
    sys.stdin.readline()
    imported = time.perf_counter()
Builder().load()
loaded = time.perf_counter()
Builder().load()
again = time.perf_counter()
print(json.dumps({"import_s": imported - started, "load_s": loaded - imported, "again_s": again - loaded}))
