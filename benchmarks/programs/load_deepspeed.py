"""The same as ``load_accel_ops.py`` with DeepSpeed, in an interpreter that has it and nothing of this project."""

import json
import time

import torch  # noqa: F401

started = time.perf_counter()
from deepspeed.ops.op_builder import CPUAdamBuilder  # noqa: E402

imported = time.perf_counter()
CPUAdamBuilder().load()
loaded = time.perf_counter()
CPUAdamBuilder().load()
again = time.perf_counter()
print(json.dumps({"import_s": imported - started, "load_s": loaded - imported, "again_s": again - loaded}))
