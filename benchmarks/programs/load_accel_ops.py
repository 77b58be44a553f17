"""One process that loads CPU Adam with this project; prints its times as one JSON line.

torch is imported before the clock starts: whoever loads an op has it already.
"""

import json
import time

import torch  # noqa: F401

started = time.perf_counter()
from op_builder import CPUAdamBuilder  # noqa: E402

imported = time.perf_counter()
CPUAdamBuilder().load()
loaded = time.perf_counter()
CPUAdamBuilder().load()
again = time.perf_counter()
print(json.dumps({"import_s": imported - started, "load_s": loaded - imported, "again_s": again - loaded}))
